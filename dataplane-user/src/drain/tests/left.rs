//! Endpoints that leave while their node is flagged: kube-proxy decides their weight then.
use std::{rc::Rc, time::Duration};

use super::{
    super::{restore::restore, world::Hands},
    Agent, MS, at, key, node, shared, wanted, world,
};
use crate::{
    ipvs::Protocol,
    ledger::Pair,
    plan::drain::{Flagged, WantedDestinations},
};

/// The first service, with its endpoint on node 2 in this state.
fn view(state: &str) -> WantedDestinations {
    let others = "{ address: 10.244.2.2 }, { address: 10.244.3.1 }";
    wanted(&format!("{{ address: 10.244.2.1{state} }}, {others}"), "")
}

pub(super) const ENDING: &str = ", ready: false, serving: true, terminating: true";

pub(super) fn pair() -> Pair {
    Pair { service: key(1, Protocol::TCP), destination: at(2, 1) }
}

/// As [`Agent::flag`], with what kube-proxy wants by a view that was just read.
pub(super) fn see(agent: &mut Agent, state: &str, flagged: &[Flagged]) {
    agent.want(view(state));
    agent.confirm();
    agent.flag(flagged);
}

/// The endpoint ends while its clients are yet to be challenged: kube-proxy drains it, with the weight that it has.
#[test]
fn one_that_ends_is_given_no_weight() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[]);
    see(&mut agent, "", &[node(2)]);
    assert!(agent.run(100 * MS));
    assert_eq!(shared.borrow().entries[&pair()].original.weight, 1);
    see(&mut agent, ENDING, &[node(2)]);
    assert!(agent.run(100 * MS));
    assert_eq!(shared.borrow().entries[&pair()].original.weight, 0, "the guard knows no endpoints");
    see(&mut agent, ENDING, &[]);
    assert!(agent.run(Duration::from_secs(1)));
    let mut expected = world().saved();
    expected.get_mut(&pair()).unwrap().weight = 0;
    assert_eq!(shared.borrow().saved(), expected);
    let row = &agent.drive.machine.report()["node-2"];
    assert!(row.problems[0].contains("not to be used any more"), "{row:?}");
    // Nothing is left to do, and an agent that ends now leaves it so.
    assert_eq!(agent.drive.machine.next_due(), None);
    // Its endpoint is ready again, and kube-proxy never saw that it was not.
    see(&mut agent, "", &[]);
    assert!(agent.run(Duration::from_secs(1)));
    assert_eq!(shared.borrow().saved(), world().saved());
    assert!(shared.borrow().entries.is_empty());
}

#[test]
fn one_that_ends_and_is_removed_is_forgotten() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[]);
    see(&mut agent, "", &[node(2)]);
    assert!(agent.run(100 * MS));
    see(&mut agent, ENDING, &[]);
    assert!(agent.run(300 * MS));
    let removed = crate::ipvs::Change::DeleteDestination(pair().service, pair().destination);
    shared.borrow_mut().change(&removed);
    assert!(agent.run(300 * MS));
    assert!(shared.borrow().entries.is_empty());
    assert_eq!(shared.borrow_mut().destination(&pair()), None);
}

/// Deleted by us, and gone from the view before it was added again.
#[test]
fn one_that_leaves_while_it_is_deleted_is_not_added() {
    let shared = shared(world());
    shared.borrow_mut().flush = Duration::from_secs(9);
    let mut agent = Agent::new(&shared, &[]);
    see(&mut agent, "", &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(300 * MS));
    assert_eq!(shared.borrow_mut().destination(&pair()), None);
    see(&mut agent, ENDING, &[]);
    assert!(agent.run(300 * MS));
    assert_eq!(shared.borrow_mut().destination(&pair()), None);
    assert!(shared.borrow().entries.is_empty());
}

/// The agent dies: neither the guard nor the next agent gives an endpoint that has left a weight again.
#[test]
fn the_ledger_says_it_too() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[]);
    see(&mut agent, "", &[node(2)]);
    assert!(agent.run(100 * MS));
    see(&mut agent, ENDING, &[node(2)]);
    assert!(agent.run(100 * MS));
    drop(agent);
    let entries = shared.borrow().entries.clone();
    assert!(restore(&mut Hands(Rc::clone(&shared)), &entries).unwrap().left.is_empty());
    let mut expected = world().saved();
    expected.get_mut(&pair()).unwrap().weight = 0;
    assert_eq!(shared.borrow().saved(), expected);
    let mut next = Agent::new(&shared, &[]);
    see(&mut next, ENDING, &[]);
    assert!(next.run(Duration::from_secs(1)));
    assert_eq!(shared.borrow().saved(), expected);
    assert!(shared.borrow().entries.is_empty());
}
