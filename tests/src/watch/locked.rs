//! Locks a mutex even if it is poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a test panicked while it held the lock.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
