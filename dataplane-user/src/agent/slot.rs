//! Work for a thread, put in by others. Newer work takes the place of older, and nobody waits until it is done.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The work for one thread. The default is no work.
#[derive(Default)]
pub(super) struct Slot<T> {
    work: Mutex<T>,
    rung: Condvar,
}

impl<T: Default> Slot<T> {
    fn work(&self) -> MutexGuard<'_, T> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is to be done.
    pub(super) fn post(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.work());
        self.rung.notify_one();
    }

    /// For that thread alone: takes all work as soon as there is some, or none after `longest`.
    pub(super) fn take(&self, longest: Duration, is_something: impl Fn(&T) -> bool) -> T {
        let work = self.work();
        let waited = self.rung.wait_timeout_while(work, longest, |work| !is_something(work));
        let (mut work, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut work)
    }
}
