//! The agent fails at every step there is, and lives on.
use std::{rc::Rc, time::Duration};

use super::{
    super::{restore::restore, world::Hands},
    Agent, MS,
    left::{ENDING, pair, see},
    node, shared, world,
};
use crate::plan::drain::Flagged;

/// Flag; an endpoint of the node ends; the agent dies, and the guard restores what the ledger names. A step fails after `first` steps, and
/// another after `second` more. Returns whether they did.
fn stumbles(first: usize, second: Option<usize>) -> bool {
    let shared = shared(world());
    let flagged = [Flagged { challenged: true, ..node(2) }];
    let mut agent = Agent::new(&shared, &[]);
    shared.borrow_mut().stumbles = [first].into_iter().chain(second).collect();
    see(&mut agent, "", &flagged);
    agent.live(800 * MS);
    see(&mut agent, ENDING, &flagged);
    agent.live(300 * MS);
    let did = shared.borrow().stumbles.is_empty();
    shared.borrow_mut().stumbles.clear();
    agent.live(400 * MS);
    let what = format!("failed after {first} steps and {second:?} more");
    assert_eq!(shared.borrow().entries, agent.drive.machine.entries(), "{what}");
    drop(agent);
    let entries = shared.borrow().entries.clone();
    assert!(restore(&mut Hands(Rc::clone(&shared)), &entries).unwrap().left.is_empty(), "{what}");
    let mut expected = world().saved();
    // kube-proxy drains this endpoint.
    expected.get_mut(&pair()).unwrap().weight = 0;
    assert_eq!(shared.borrow().saved(), expected, "{what}");
    did
}

#[test]
fn the_ledger_says_what_is_believed_whatever_failed() {
    let mut first = 0;
    while stumbles(first, None) {
        first += 1;
    }
    // Each line, each change twice, and each reading.
    assert!(first > 150, "{first} steps");
}

#[test]
fn also_where_two_fail() {
    for second in 0..16 {
        let mut first = 0;
        while stumbles(first, Some(second)) {
            first += 1;
        }
        assert!(first > 100, "{first} steps");
    }
}

/// The last line says that nothing is ours any more. No later write would repeat it.
#[test]
fn what_was_restored_is_dropped_from_the_ledger_in_the_end() {
    for first in 0..60 {
        let shared = shared(world());
        let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
        agent.live(Duration::from_secs(1));
        shared.borrow_mut().stumbles = vec![first];
        agent.flag(&[]);
        agent.live(Duration::from_secs(1));
        assert!(shared.borrow().entries.is_empty(), "failed after {first} steps");
        assert_eq!(shared.borrow().saved(), world().saved());
        assert_eq!(agent.drive.next(false), None);
    }
}

/// Where the disk is full nothing more is drained, and drained destinations are restored.
#[test]
fn a_full_disk_does_not_keep_weights_from_being_restored() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    agent.live(Duration::from_secs(1));
    shared.borrow_mut().full = true;
    agent.flag(&[]);
    for _ in 0..10 {
        assert!(!agent.run(Duration::from_secs(1)));
    }
    assert_eq!(shared.borrow().saved(), world().saved());
    agent.flag(&[Flagged { challenged: true, ..node(2) }]);
    agent.changes();
    for _ in 0..10 {
        assert!(!agent.run(Duration::from_secs(1)));
    }
    assert_eq!(agent.changes(), []);
    shared.borrow_mut().full = false;
    agent.flag(&[]);
    agent.live(Duration::from_secs(1));
    assert!(shared.borrow().entries.is_empty() && agent.drive.machine.is_empty());
}
