//! An agent that ends restores what it drained, and nobody does so in its place.
use std::{cell::Cell, rc::Rc, time::Duration};

use super::{
    super::{
        drive::Failure,
        ending::{Reopened, RestoredAtEnd, Surroundings, restore_within},
        world::{Hands, Shared},
    },
    Agent, node, shared, world,
};
use crate::{ipvs, plan::drain::Flagged};

const LONGEST: Duration = Duration::from_secs(10);

struct Around {
    world: Shared,
    /// When (the world's time) the tables answer again, and there is space on the disk.
    answers: Duration,
    /// The outcome of opening them then.
    then: Cell<Option<Reopened<Hands>>>,
    told: Vec<String>,
}

impl Surroundings<Hands> for Around {
    fn now(&self) -> Duration {
        self.world.borrow().now
    }

    fn pause(&mut self, time: Duration) {
        let mut world = self.world.borrow_mut();
        world.pass(time);
        world.full &= world.now < self.answers;
    }

    fn reopen(&mut self, _error: &ipvs::Error) -> Reopened<Hands> {
        if self.now() < self.answers {
            return Reopened::NotYet;
        }
        self.world.borrow_mut().deaf = false;
        self.then.take().unwrap_or(Reopened::NotYet)
    }

    fn tell(&mut self, problem: Failure) {
        self.told.push(problem.to_string());
    }
}

/// The outcome of the end of an agent that had drained node 2, and the problems that it reported.
fn end(shared: &Shared, answers: Duration, then: Option<Reopened<Hands>>) -> (RestoredAtEnd, Vec<String>) {
    let answers = shared.borrow().now + answers;
    let mut agent = Agent::new(shared, &[]);
    let mut around = Around { world: Rc::clone(shared), answers, then: Cell::new(then), told: Vec::new() };
    (restore_within(&mut agent.drive, &mut around, LONGEST), around.told)
}

/// Node 2 is drained.
fn out() -> Shared {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    assert_ne!(shared.borrow().saved(), world().saved());
    shared
}

fn is_done(shared: &Shared) {
    assert_eq!(shared.borrow().saved(), world().saved());
    assert!(shared.borrow().entries.is_empty());
}

/// A container that was paused for longer than the lease holds, and is then ended: it does not know what was restored meanwhile.
#[test]
fn a_lease_that_has_lapsed_is_said() {
    let shared = out();
    shared.borrow_mut().lapsed = true;
    let (entries, saved) = (shared.borrow().entries.clone(), shared.borrow().saved());
    assert_eq!(end(&shared, Duration::ZERO, None), (RestoredAtEnd::Lapsed, vec![]));
    assert_eq!((&shared.borrow().entries, shared.borrow().saved()), (&entries, saved));
}

#[test]
fn a_disk_that_is_full_for_a_moment() {
    let shared = out();
    shared.borrow_mut().full = true;
    let (done, told) = end(&shared, Duration::from_secs(1), None);
    assert!(done == RestoredAtEnd::All && told.len() > 4, "{told:?}");
    is_done(&shared);
}

#[test]
fn tables_that_do_not_answer_are_opened_again() {
    let shared = out();
    shared.borrow_mut().deaf = true;
    let answers = Duration::from_secs(7);
    let (done, told) = end(&shared, answers, Some(Reopened::Tables(Hands(Rc::clone(&shared)))));
    assert!(done == RestoredAtEnd::All && told.len() > 10, "{done:?} {told:?}");
    is_done(&shared);
}

/// IPVS was unloaded: there is nothing to restore.
#[test]
fn what_went_with_its_tables_is_forgotten() {
    let shared = out();
    shared.borrow_mut().deaf = true;
    assert_eq!(end(&shared, Duration::ZERO, Some(Reopened::Gone)), (RestoredAtEnd::All, vec![]));
    assert!(shared.borrow().entries.is_empty());
}

/// A destination that could not be restored stays in the ledger, for the guard or the next agent.
#[test]
fn it_does_not_try_for_ever() {
    let shared = out();
    shared.borrow_mut().deaf = true;
    let (entries, begun) = (shared.borrow().entries.clone(), shared.borrow().now);
    let (done, told) = end(&shared, Duration::MAX / 2, None);
    assert!(done == RestoredAtEnd::Late && !told.is_empty());
    let took = shared.borrow().now - begun;
    assert!(took >= LONGEST && took < LONGEST + Duration::from_secs(1), "{took:?}");
    assert_eq!(shared.borrow().entries, entries);
}
