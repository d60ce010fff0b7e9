//! How long a thread had a processor: unlike the time that passed, it does not grow where others have the processors.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// What this thread has had of processors.
pub(super) fn processor_time() -> Duration {
    // The clock exists on every kernel that can run this; an error cannot come back.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Does something, and tells how long this thread had a processor for it.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = processor_time();
    let done = work();
    (done, processor_time().saturating_sub(before))
}
