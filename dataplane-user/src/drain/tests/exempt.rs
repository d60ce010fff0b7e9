//! Services whose last destinations are exempt, and what becomes of these once there are others.
use std::time::Duration;

use super::{Agent, MS, at, key, node, shared, world};
use crate::{
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
