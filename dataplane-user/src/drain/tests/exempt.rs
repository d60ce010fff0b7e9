//! Services whose last destinations are exempt, and what becomes of these once there are others.
use std::time::Duration;

use super::{Agent, MS, Shared, at, key, node, shared, world};
use crate::{
    cluster::{Backend, Protocol as Transport, Scope},
    ipvs::{Change, Destination, Protocol},
    plan::drain::{CHALLENGE, Flagged},
};

/// A service keeps its last destinations, in whichever order flags and destinations come and go.
#[test]
fn the_last_ones_are_exempt() {
    let (two, three) = (Flagged { challenged: true, ..node(2) }, Flagged { challenged: true, ..node(3) });
    for first in [&two, &three] {
        let shared = shared(world());
        let mut agent = Agent::new(&shared, std::slice::from_ref(first));
        assert!(agent.run(Duration::from_secs(3)));
        agent.flag(&[two.clone(), three.clone()]);
        assert!(agent.run(Duration::from_secs(3)));
        assert_eq!(shared.borrow().saved(), world().saved());
        let row = &agent.drive.machine.report()["node-3"];
        assert_eq!((row.drained, row.exempt.len()), (0, 9), "{row:?}");
        // Another destination comes: now these are drained.
        let web = key(1, Protocol::TCP);
        let new = Change::NewDestination(web, Destination::new(at(4, 1), 1));
        shared.borrow_mut().change(&new);
        assert!(agent.run(Duration::from_secs(4)));
        let weights: Vec<u32> = shared.borrow().servers[&web].destinations.iter().map(|d| d.weight).collect();
        assert_eq!(weights.iter().filter(|weight| **weight > 0).count(), 1, "{weights:?}");
    }
}

/// A Service that is left out, and whatever else has its port, keep their destinations. Others at the same address do not.
#[test]
fn destinations_at_ports_that_are_left_out_stay() {
    let left_out = |port| Backend { address: at(2, 1).ip(), scope: Scope::Port(port, Transport::Tcp) };
    let flag = |port| Flagged { left_out: vec![left_out(port)], challenged: true, ..node(2) };
    let web = key(1, Protocol::TCP);
    let weight = |shared: &Shared, key| {
        let world = shared.borrow();
        world.servers[&key].destinations.iter().find(|one| one.address == at(2, 1)).map(|one| one.weight)
    };
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[flag(8080)]);
    assert!(agent.run(Duration::from_secs(3)));
    assert_eq!(weight(&shared, web), Some(1));
    assert_ne!(weight(&shared, key(2, Protocol::UDP)), Some(2), "the same port of another protocol");
    // The label is taken away, and comes back.
    agent.flag(&[flag(9)]);
    assert!(agent.run(Duration::from_secs(3)));
    assert_ne!(weight(&shared, web), Some(1));
    agent.flag(&[flag(8080)]);
    assert!(agent.run(Duration::from_secs(10)));
    assert_eq!(weight(&shared, web), Some(1));
}

/// Packets to exempt destinations were never cut, so no round of challenges told their clients anything.
#[test]
fn what_is_exempt_no_more_waits_for_its_clients_to_be_challenged() {
    let shared = shared(world());
    let (two, three) = (Flagged { challenged: true, ..node(2) }, Flagged { challenged: true, ..node(3) });
    let mut agent = Agent::new(&shared, &[two.clone(), three]);
    assert!(agent.run(CHALLENGE + Duration::from_secs(1)));
    agent.changes();
    // As the agent reports it: the earlier round counts no more.
    agent.flag(&[node(2)]);
    assert!(agent.run(Duration::from_secs(3)));
    let tcp_deleted = |changes: &[Change]| {
        let web = key(1, Protocol::TCP);
        changes.iter().any(|change| matches!(change, Change::DeleteDestination(key, _) if *key == web))
    };
    let changes = agent.changes();
    assert!(changes.iter().any(|change| matches!(change, Change::SetDestination(..))), "{changes:?}");
    assert!(!tcp_deleted(&changes), "{changes:?}");
    agent.flag(&[two]);
    assert!(agent.run(50 * MS));
    assert!(tcp_deleted(&agent.changes()), "as soon as they are challenged");
}
