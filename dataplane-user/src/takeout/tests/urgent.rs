//! Services that packets wait for.
use std::time::Duration;

use super::{Agent, MS, at, key, node, server, shared, used, world};
use crate::{ipvs::Protocol, ledger::Pair, plan::takeout::Flagged};

/// A service that is made after all were read, and whether its destination on node 2 is out so long after somebody waited for it.
fn is_out_within(time: Duration, urged: bool) -> bool {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { asked: true, ..node(2) }]);
    // All is read once a second, from now on.
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
fn a_new_service_is_taken_out_as_soon_as_a_packet_waits_for_it() {
    assert!(is_out_within(10 * MS, true));
    assert!(!is_out_within(800 * MS, false), "else at the next reading of everything");
    assert!(is_out_within(Duration::from_millis(1_100), false));
}

/// Packets that nobody can help are no reason to read the tables without end.
#[test]
fn what_is_urgent_all_the_time_is_looked_at_now_and_then() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { asked: true, ..node(2) }]);
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
