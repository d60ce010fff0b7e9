//! The agent was stopped, and the guard has put back what it took.
use std::{rc::Rc, time::Duration};

use super::{
    super::{
        restore::restore,
        world::{Hands, Proxy, Shared},
    },
    Agent, MS, at, is_out, key, node, shared, world,
};
use crate::{
    ipvs::{Change, Protocol},
    ledger::Pair,
    plan::takeout::Flagged,
};

/// The guard at work while the agent is stopped.
fn put_back(shared: &Shared) {
    let entries = shared.borrow().entries.clone();
    let restored = restore(&mut Hands(Rc::clone(shared)), &entries).unwrap();
    assert!(restored.left.is_empty());
    shared.borrow_mut().lapsed = true;
}

/// The agent goes on, and claims the lease again. `deadline`: that of the lapsed one, where the guard has written that all is put back.
fn claim_again(agent: &mut Agent, deadline: Option<Duration>) {
    agent.drive.read_all();
    assert!(agent.drive.round().unwrap().lapsed);
    agent.world.borrow_mut().lapsed = false;
    agent.drive.claimed_again(deadline).unwrap();
}

/// An agent that lapsed takes nothing for done: it claims the lease again, and takes out what was put back.
#[test]
fn after_a_lapse_it_is_taken_out_again() {
    // Whether or not the guard could write that it is done.
    for known in [true, false] {
        let shared = shared(world());
        let mut agent = Agent::new(&shared, &[Flagged { asked: true, ..node(2) }]);
        assert!(agent.run(Duration::from_secs(3)));
        let deadline = shared.borrow().now;
        shared.borrow_mut().pass(Duration::from_secs(5));
        put_back(&shared);
        assert_eq!(shared.borrow().saved(), world().saved());
        agent.changes();
        claim_again(&mut agent, known.then_some(deadline));
        assert_eq!(agent.changes(), []);
        assert!(agent.run(Duration::from_secs(3)));
        is_out(&world(), &shared.borrow());
        agent.flag(&[]);
        assert!(agent.run(Duration::from_secs(1)));
        assert_eq!(shared.borrow().saved(), world().saved());
    }
}

/// kube-proxy removes what the guard has put back: it is not the agent's to add again, however long it was deleted before.
#[test]
fn what_was_put_back_and_is_gone_is_forgotten() {
    let shared = shared(world());
    let flagged = [Flagged { asked: true, ..node(2) }];
    let mut agent = Agent::new(&shared, &flagged);
    assert!(agent.run(Duration::from_secs(3)));
    let gone = Pair { service: key(4, Protocol::TCP), destination: at(2, 1) };
    assert_eq!(shared.borrow_mut().destination(&gone), None, "deleted for good, as long as the flag holds");
    let deadline = shared.borrow().now;
    shared.borrow_mut().pass(Duration::from_secs(5));
    put_back(&shared);
    let mut proxy = Proxy::default();
    proxy.wanted.insert(gone.service, vec![at(3, 1)]);
    proxy.sync(&mut shared.borrow_mut());
    if let Some(left) = shared.borrow_mut().destination(&gone) {
        left.active = 0;
    }
    proxy.sync(&mut shared.borrow_mut());
    assert_eq!(shared.borrow_mut().destination(&gone), None);
    claim_again(&mut agent, Some(deadline));
    agent.changes();
    assert!(agent.run(Duration::from_secs(3)));
    let added = |change: &Change| matches!(change, Change::NewDestination(key, _) if *key == gone.service);
    assert!(!agent.changes().iter().any(added));
    assert!(!shared.borrow().entries.contains_key(&gone));
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    let mut expected = world().saved();
    expected.remove(&gone);
    assert_eq!(shared.borrow().saved(), expected);
    assert!(shared.borrow().entries.is_empty());
}

/// It was stopped with a change on its way, which was made after the guard had been there.
#[test]
fn what_was_deleted_late_is_still_ours() {
    let shared = shared(world());
    let udp = Pair { service: key(2, Protocol::UDP), destination: at(2, 1) };
    shared.borrow_mut().flush = Duration::from_secs(9);
    let mut agent = Agent::new(&shared, &[node(2)]);
    assert!(agent.run(20 * MS));
    assert_eq!(shared.borrow_mut().destination(&udp), None, "just deleted");
    // The lease had lapsed before, and the guard has been there in between.
    agent.drive.machine.put_back(Duration::ZERO);
    let entries = agent.drive.machine.entries();
    assert_eq!(entries[&udp], shared.borrow().entries[&udp]);
    shared.borrow_mut().entries = entries;
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    let weight = |shared: &Shared| shared.borrow_mut().destination(&udp).map(|found| found.weight);
    assert_eq!(weight(&shared), Some(2));
}
