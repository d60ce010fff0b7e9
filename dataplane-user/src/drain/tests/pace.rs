//! How soon changes of others are found, however large the table is.
use std::time::Duration;

use super::{Agent, EXEMPT, MS, at, key, node, server, shared, used, world};
use crate::{
    ipvs::{Change, Destination, Protocol, ServiceKey},
    ledger::Pair,
    plan::drain::Flagged,
};

/// Services that have nothing to do with node 2.
const OTHERS: u16 = 1_000;
/// As on a real machine, where 10,000 services take some 300 ms.
pub(super) const READING: Duration = Duration::from_micros(250);

/// An agent that has drained node 2 from a table that takes a quarter of a second to read.
pub(super) fn large() -> Agent {
    let mut large = world();
    for number in 0..OTHERS {
        let address = ([10, 97, (number / 250) as u8, (number % 250) as u8], 80).into();
        let key = ServiceKey::Address { address, protocol: Protocol::TCP };
        large.servers.insert(key, server(key, "rr", 0, vec![used(at(3, 1), 1, 0)]));
    }
    large.reading = READING;
    let mut agent = Agent::new(&shared(large), &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    agent
}

/// How long a change that others made just now holds.
pub(super) fn undone_after(agent: &mut Agent, pair: &Pair) -> Duration {
    let begun = agent.world.borrow().now;
    let undone = |agent: &Agent| {
        let mut world = agent.world.borrow_mut();
        world.destination(pair).is_none_or(|found| found.weight == 0)
    };
    while !undone(agent) {
        assert!(agent.run(MS));
    }
    agent.world.borrow().now - begun
}

/// A destination is added again with weight 1 about every second; how long that held at most.
fn longest_of_an_adversary(agent: &mut Agent, times: usize) -> Duration {
    let web = Pair { service: key(1, Protocol::TCP), destination: at(2, 1) };
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let mut world = agent.world.borrow_mut();
        let _gone = world.change(&Change::DeleteDestination(web.service, web.destination));
        let _added = world.change(&Change::NewDestination(web.service, Destination::new(web.destination, 1)));
        drop(world);
        let undone = undone_after(agent, &web);
        longest = longest.max(undone);
        // At a different point of the agent's rounds each time.
        assert!(agent.run(Duration::from_millis(1_037).saturating_sub(undone)));
    }
    longest
}

#[test]
fn an_adversary_is_undone_in_time() {
    let longest = longest_of_an_adversary(&mut large(), 40);
    assert!(longest <= Duration::from_millis(500), "{longest:?}");
}

/// What is ours is read back by itself, and soon enough even where that takes its time.
#[test]
fn an_adversary_is_undone_in_time_by_a_slow_kernel() {
    let mut slow = world();
    // All that is ours is read within 100 ms.
    slow.reading = 10 * MS;
    let mut agent = Agent::new(&shared(slow), &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    let longest = longest_of_an_adversary(&mut agent, 40);
    assert!(longest <= Duration::from_millis(500), "{longest:?}");
}

/// Large tables are read seldom: everybody else waits for the same lock.
#[test]
fn reading_takes_a_small_part_of_the_time() {
    let mut agent = large();
    let before = agent.world.borrow().read;
    assert!(agent.run(Duration::from_secs(120)));
    let read = READING * u32::try_from(agent.world.borrow().read - before).unwrap();
    assert!(read < Duration::from_secs(120) / 15, "{read:?}");
}

/// Services that have nothing to do with node 2 are passed over by their addresses.
#[test]
fn what_is_of_no_concern_is_not_read_whole() {
    let mut agent = large();
    let concerned = agent.world.borrow().servers.len() - usize::from(OTHERS);
    let [read, whole] = [agent.world.borrow().read, agent.world.borrow().read_whole];
    agent.drive.read_all();
    assert!(agent.drive.round().is_ok());
    let world = agent.world.borrow();
    assert!(world.read - read >= usize::from(OTHERS), "{}", world.read - read);
    let whole = world.read_whole - whole;
    assert!(whole > 0 && whole <= concerned, "{whole} of {concerned}");
}

/// A list lacks what is ours and what is exempt, and has the rest twice.
#[test]
fn what_a_list_lacks_is_looked_at_all_the_same() {
    let web = Pair { service: key(1, Protocol::TCP), destination: at(2, 1) };
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    agent.changes();
    shared.borrow_mut().passed_over = EXEMPT.into_iter().chain([web.service]).collect();
    shared.borrow_mut().destination(&web).unwrap().weight = 1;
    agent.drive.read_all();
    assert!(agent.drive.round().is_ok());
    assert_eq!(shared.borrow_mut().destination(&web).unwrap().weight, 0);
    assert_eq!(agent.changes().len(), 1, "nothing is done twice");
    assert_eq!(agent.drive.machine.report()["node-2"].exempt.len(), EXEMPT.len());
}

/// A service of which nothing can be concluded holds up no other.
#[test]
fn what_cannot_be_read_is_left_alone() {
    let mut odd = world();
    odd.unreadable.insert(key(1, Protocol::TCP));
    let shared = shared(odd);
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    assert_eq!(agent.drive.machine.report()["node-2"].drained, 7);
    let web = key(1, Protocol::TCP);
    assert_eq!(shared.borrow().servers[&web].destinations, world().servers[&web].destinations);
}

/// Conntrack is read while connections are flushed, and may be much larger than the table.
#[test]
fn counting_does_not_hold_it_up() {
    let mut slow = world();
    (slow.counting, slow.flush) = (40 * MS, Duration::from_secs(3_600));
    let mut agent = Agent::new(&shared(slow), &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(250 * MS));
    let idle = Pair { service: key(6, Protocol::TCP), destination: at(2, 1) };
    for _ in 0..10 {
        agent.world.borrow_mut().destination(&idle).unwrap().weight = 1;
        let undone = undone_after(&mut agent, &idle);
        assert!(undone < Duration::from_millis(300), "{undone:?}");
    }
}
