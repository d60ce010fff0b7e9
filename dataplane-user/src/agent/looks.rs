//! Looks at devices and routes. One task makes them. Whoever needs a look asks for it and waits.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// How often a waiter checks whether there will be a look at all.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which looks were asked for, and which are over.
#[derive(Default)]
pub(super) struct Looks {
    counts: Mutex<Counts>,
    over: Condvar,
    asked: Notify,
}

#[derive(Default)]
struct Counts {
    asked: u64,
    over: u64,
    /// How many want the own node's pods looked at although the node bears no claim: it is about to be claimed.
    own: usize,
    ended: bool,
}

impl Looks {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a look that begins from now on.
    pub(super) fn ask(&self) -> u64 {
        let mut counts = self.counts();
        counts.asked += 1;
        let number = counts.asked;
        drop(counts);
        self.asked.notify_one();
        number
    }

    /// Asks for a look and waits until it is over, for `longest` at most: the task may stand still. Blocking.
    pub(super) fn look(&self, longest: Duration) {
        let number = self.ask();
        let begun = Instant::now();
        let mut counts = self.counts();
        while counts.over < number && !counts.ended {
            let Some(left) = longest.checked_sub(begun.elapsed()) else { return };
            counts = self.over.wait_timeout(counts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the look of this number is over. Blocking.
    pub(super) fn wait(&self, number: u64) {
        let mut counts = self.counts();
        while counts.over < number && !counts.ended {
            let waited = self.over.wait_timeout(counts, PATIENCE);
            counts = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has looks reach the own node's pods as long as the returned value lives, whether the node is claimed or not.
    pub(super) fn reach_own(self: &Arc<Self>) -> ReachesOwn {
        self.counts().own += 1;
        ReachesOwn(Arc::clone(self))
    }

    /// For the task that looks: waits until somebody asks.
    pub(super) async fn asked(&self) {
        while !self.is_asked() {
            self.asked.notified().await;
        }
    }

    fn is_asked(&self) -> bool {
        let counts = self.counts();
        counts.asked > counts.over
    }

    /// For the task that looks: which look begins now, and whether it is to reach the own node's pods in any case.
    pub(super) fn begin(&self) -> (u64, bool) {
        let counts = self.counts();
        (counts.asked, counts.own > 0)
    }

    /// For the task that looks: this look is over.
    pub(super) fn over(&self, number: u64) {
        let mut counts = self.counts();
        counts.over = counts.over.max(number);
        drop(counts);
        self.over.notify_all();
    }

    /// For the task that looks: there will be no more looks.
    pub(super) fn end(&self) {
        self.counts().ended = true;
        self.over.notify_all();
    }
}

/// See [`Looks::reach_own`].
pub(super) struct ReachesOwn(Arc<Looks>);

impl Drop for ReachesOwn {
    fn drop(&mut self) {
        self.0.counts().own -= 1;
        // The last look may have reached the pods for nothing.
        self.0.ask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_was_going_on_is_not_the_one_that_was_asked_for() {
        let looks = Arc::new(Looks::default());
        let (going_on, _) = looks.begin();
        let number = looks.ask();
        looks.over(going_on);
        assert!(looks.is_asked());
        assert_eq!(looks.begin(), (number, false));
        looks.over(number);
        assert!(!looks.is_asked());
        let waits = {
            let looks = Arc::clone(&looks);
            std::thread::spawn(move || looks.look(Duration::MAX))
        };
        while !looks.is_asked() {
            std::thread::yield_now();
        }
        looks.over(looks.begin().0);
        waits.join().unwrap();
        // The task that looks stands still.
        looks.look(Duration::from_millis(1));
        assert!(looks.is_asked());
        // Nobody looks any more.
        looks.end();
        looks.look(Duration::MAX);
    }

    #[test]
    fn the_own_node_is_reached_as_long_as_somebody_wants_it() {
        let looks = Arc::new(Looks::default());
        let both = (looks.reach_own(), looks.reach_own());
        drop(both.0);
        assert!(looks.begin().1);
        drop(both.1);
        assert!(!looks.begin().1 && looks.is_asked());
    }
}
