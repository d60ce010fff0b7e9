//! The agent was stopped, and the guard has restored what it drained.
use std::time::Duration;

use super::{super::world::lapse, Agent, MS, node, shared, world};
use crate::plan::drain::Flagged;

/// Whatever was under way when the agent was stopped, and whichever nodes are flagged by then.
#[test]
fn once_it_has_lapsed_nothing_more_is_changed() {
    for passed in [1, 20, 200, 3_000] {
        let shared = shared(world());
        let flagged = [Flagged { challenged: true, ..node(2) }];
        let mut agent = Agent::new(&shared, &flagged);
        assert!(agent.run(Duration::from_millis(passed)));
        lapse(&shared);
        shared.borrow_mut().pass(Duration::from_secs(5));
        assert_eq!(shared.borrow().saved(), world().saved());
        agent.changes();
        for flagged in [&flagged[..], &[], &[node(3)]] {
            agent.flag(flagged);
            agent.drive.read_all();
            for _ in 0..3 {
                let round = agent.drive.round().unwrap();
                assert_eq!(round.changes, 0, "{passed} ms");
                shared.borrow_mut().pass(Duration::from_secs(1));
            }
            assert_eq!(agent.changes(), []);
        }
        assert!(shared.borrow().entries.is_empty(), "nothing is written either");
        assert_eq!(shared.borrow().saved(), world().saved());
    }
}

/// The agent had a change under way when it was stopped, and made it after the guard had restored: the ledger names the destination again,
/// so that it is restored.
#[test]
fn a_change_that_is_made_late_is_restored() {
    let mut late = 0;
    for stops in 0.. {
        let shared = shared(world());
        shared.borrow_mut().stops = Some(stops);
        let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
        let mut lapsed = false;
        for round in 0..400 {
            if round == 300 {
                agent.flag(&[]);
            }
            lapsed = lapsed || agent.drive.round().unwrap().lapsed;
            shared.borrow_mut().pass(10 * MS);
        }
        assert_eq!(lapsed, shared.borrow().lapsed, "batch {stops}");
        if !lapsed {
            break;
        }
        late += usize::from(shared.borrow().saved() != world().saved());
        lapse(&shared);
        assert_eq!(shared.borrow().saved(), world().saved(), "batch {stops}");
    }
    assert!(late >= 2, "{late}");
}
