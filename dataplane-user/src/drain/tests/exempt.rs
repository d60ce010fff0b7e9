//! Services that keep their last destinations, and what becomes of them once there are others.
use std::time::Duration;

use super::{Agent, MS, at, key, node, shared, world};
use crate::{
    ipvs::{Change, Destination, Protocol},
    plan::drain::{CHALLENGE, Flagged},
};

/// The order of flags and of what comes and goes does not matter: a service keeps its last destinations.
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
        assert_eq!((row.taken, row.exempt.len()), (0, 9), "{row:?}");
        // Another one comes: now they are drained.
        let web = key(1, Protocol::TCP);
        let new = Change::NewDestination(web, Destination::new(at(4, 1), 1));
        shared.borrow_mut().change(&new);
        assert!(agent.run(Duration::from_secs(4)));
        let weights: Vec<u32> = shared.borrow().servers[&web].destinations.iter().map(|d| d.weight).collect();
        assert_eq!(weights.iter().filter(|weight| **weight > 0).count(), 1, "{weights:?}");
    }
}

/// What was exempt was cut nowhere, so that no round of challenges told its clients anything.
#[test]
fn what_is_exempt_no_more_waits_for_its_clients_to_be_challenged() {
    let shared = shared(world());
    let (two, three) = (Flagged { challenged: true, ..node(2) }, Flagged { challenged: true, ..node(3) });
    let mut agent = Agent::new(&shared, &[two.clone(), three]);
    assert!(agent.run(CHALLENGE + Duration::from_secs(1)));
    agent.changes();
    // As the agent tells it: the round that was counts no more.
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
