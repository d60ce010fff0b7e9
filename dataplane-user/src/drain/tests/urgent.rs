//! Services that packets wait for.
use std::time::Duration;

use super::{
    super::world::{Shared, World},
    Agent, MS, at, key, node, server, shared, used, world,
};
use crate::{
    ipvs::{Change, Protocol, ServiceKey},
    ledger::Pair,
    plan::drain::Flagged,
};

/// A service that is made after all were read. Returns whether its destination on node 2 is drained so long after a packet waited for it.
fn is_out_within(time: Duration, urged: bool) -> bool {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    // From now on everything is read once a second.
    assert!(agent.run(3 * Duration::from_secs(1)));
    agent.drive.read_all();
    assert!(agent.run(10 * MS));
    let new = Pair { service: key(40, Protocol::TCP), destination: at(2, 1) };
    let destinations = vec![used(at(2, 1), 1, 0), used(at(3, 1), 1, 0)];
    shared.borrow_mut().servers.insert(new.service, server(new.service, "rr", 0, destinations));
    if urged {
        agent.drive.urge([new.service]);
        assert!(agent.drive.is_urged());
    }
    assert!(agent.run(time));
    assert!(!agent.drive.is_urged());
    let weight = shared.borrow_mut().destination(&new).unwrap().weight;
    assert_eq!(agent.drive.machine.balanced().contains(&new), weight == 0);
    weight == 0
}

#[test]
fn a_new_service_is_drained_as_soon_as_a_packet_waits_for_it() {
    assert!(is_out_within(10 * MS, true));
    assert!(!is_out_within(800 * MS, false), "else at the next reading of everything");
    assert!(is_out_within(Duration::from_millis(1_100), false));
}

/// Packets that nobody can help are no reason to read the tables without end.
#[test]
fn what_is_urgent_all_the_time_is_looked_at_now_and_then() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    let mut looks = 0;
    for _ in 0..100 {
        agent.drive.urge([key(8, Protocol::TCP), key(50, Protocol::UDP)]);
        assert!(agent.run(MS));
        looks += usize::from(!agent.drive.is_urged());
    }
    assert!((4..=7).contains(&looks), "{looks} in 100 ms");
    // Nobody is flagged any more: nobody waits.
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    agent.drive.urge([key(8, Protocol::TCP)]);
    assert_eq!(agent.drive.next(false), None);
}

fn service_of(change: &Change) -> ServiceKey {
    match change {
        Change::NewService(service) | Change::SetService(service) => service.key,
        Change::DeleteService(key)
        | Change::NewDestination(key, _)
        | Change::SetDestination(key, _)
        | Change::DeleteDestination(key, _) => *key,
    }
}

/// Services of a large node.
const MANY: u16 = 1_500;

fn of_many(number: u16) -> ServiceKey {
    let address = ([10, 97, (number / 250) as u8, (number % 250) as u8], 53).into();
    ServiceKey::Address { address, protocol: Protocol::UDP }
}

fn many() -> Shared {
    let destinations = || vec![used(at(2, 1), 1, 1), used(at(3, 1), 1, 1)];
    let servers = (0..MANY).map(|number| (of_many(number), server(of_many(number), "rr", 0, destinations())));
    shared(World { servers: servers.collect(), flush: 30 * MS, ..World::default() })
}

#[test]
fn a_packet_does_not_wait_for_all_of_a_large_drain() {
    let shared = many();
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.drive.round().is_ok());
    assert!(agent.changes().len() < usize::from(MANY), "not all at once");
    // A service that was not reached yet, and one that was.
    for number in [MANY - 1, 0] {
        let pair = Pair { service: of_many(number), destination: at(2, 1) };
        agent.drive.urge([pair.service]);
        shared.borrow_mut().pass(20 * MS);
        assert!(agent.drive.round().is_ok());
        let changes = agent.changes();
        assert!(changes.iter().all(|change| service_of(change) == pair.service), "{changes:?}");
        assert!(agent.drive.machine.balanced().contains(&pair), "{number}: {changes:?}");
        assert!(!agent.drive.is_urged());
    }
    assert!(agent.run(Duration::from_secs(2)));
    let row = &agent.drive.machine.report()["node-2"];
    assert_eq!((row.drained, row.waiting), (usize::from(MANY), 0));
    assert_eq!(shared.borrow().entries, agent.drive.machine.entries());
}

/// Conntrack is gone through once for all deletions, and not while the turn is held (asserted there).
#[test]
fn what_follows_from_deletions_is_done_once() {
    let shared = many();
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(90 * MS));
    let deleted = |change: &&Change| matches!(change, Change::DeleteDestination(..));
    assert_eq!(agent.changes().iter().filter(deleted).count(), usize::from(MANY));
    assert_eq!(shared.borrow().settled, 1);
    // Without a deletion nothing is settled.
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    assert_eq!(shared.borrow().settled, 1);
    assert!(agent.drive.machine.is_empty());
}

/// A node is unflagged while much is yet to be done for it.
#[test]
fn what_is_planned_for_a_flag_ends_with_it() {
    let shared = many();
    let before = shared.borrow().saved();
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.drive.round().is_ok());
    let made = agent.changes().len();
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    assert_eq!(agent.changes().len(), made, "what was lowered is raised, and nothing else");
    assert_eq!(shared.borrow().saved(), before);
    assert!(shared.borrow().entries.is_empty());
}
