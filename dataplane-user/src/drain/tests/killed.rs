//! The agent ends at every step there is.
use std::{rc::Rc, time::Duration};

use super::{
    super::{restore::restore, world::Hands},
    Agent, MS, is_out, node, shared, world,
};
use crate::plan::drain::Flagged;

/// What follows the death of an agent.
#[derive(Clone, Copy, PartialEq, Debug)]
enum After {
    /// The lease lapses, and the guard restores everything.
    Guard,
    /// Another agent goes on, the node is still flagged, and is unflagged later.
    Flagged,
    /// Another agent starts, and the node is not flagged any more.
    Unflagged,
}

/// Flag, three seconds, unflag; killed after `fuse` steps. Then as `after` says, killed once more after `second` steps. Returns whether the
/// first one was killed.
fn killed(fuse: usize, after: After, second: Option<usize>) -> bool {
    let shared = shared(world());
    shared.borrow_mut().fuse = Some(fuse);
    let flagged = [Flagged { challenged: true, ..node(2) }];
    let mut agent = Agent::new(&shared, &flagged);
    let mut alive = agent.run(Duration::from_secs(3));
    if alive {
        agent.flag(&[]);
        alive = agent.run(Duration::from_secs(1));
    }
    drop(agent);
    shared.borrow_mut().fuse = second;
    let what = format!("killed after {fuse} steps, {after:?}, {second:?}");
    for _ in 0..2 {
        shared.borrow_mut().pass(3 * MS);
        let done = match after {
            After::Guard => {
                let entries = shared.borrow().entries.clone();
                let restored = restore(&mut Hands(Rc::clone(&shared)), &entries);
                if restored.is_ok_and(|restored| restored.left.is_empty()) {
                    shared.borrow_mut().entries.clear();
                    true
                } else {
                    false
                }
            }
            After::Flagged => {
                let mut agent = Agent::new(&shared, &flagged);
                let mut done = agent.run(Duration::from_secs(3));
                if done {
                    is_out(&world(), &shared.borrow());
                    agent.flag(&[]);
                    done = agent.run(Duration::from_secs(1));
                }
                done
            }
            After::Unflagged => Agent::new(&shared, &[]).run(Duration::from_secs(1)),
        };
        shared.borrow_mut().fuse = None;
        if done {
            break;
        }
    }
    assert_eq!(shared.borrow().saved(), world().saved(), "{what}");
    assert!(shared.borrow().entries.is_empty(), "{what}");
    !alive
}

#[test]
fn killed_at_any_step() {
    for after in [After::Guard, After::Flagged, After::Unflagged] {
        let mut fuse = 0;
        while killed(fuse, after, None) {
            fuse += 1;
        }
        // Every change is two steps, every line one.
        assert!(fuse > 80, "{fuse} steps");
    }
}

#[test]
fn killed_at_any_two_steps() {
    for after in [After::Guard, After::Flagged, After::Unflagged] {
        let mut fuse = 0;
        while killed(fuse, after, Some(fuse * 7 % 31)) && killed(fuse, after, Some(fuse * 11 % 47)) {
            fuse += 3;
        }
        assert!(fuse > 80);
    }
}
