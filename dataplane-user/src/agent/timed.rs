//! The processor time of a thread. Unlike elapsed time it does not grow while other threads have the processors.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The processor time that this thread has used.
pub(super) fn processor_time() -> Duration {
    // Every kernel that can run the agent has this clock, so there is no error.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Does `work`. Returns its result, and the processor time that this thread used for it.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = processor_time();
    let done = work();
    (done, processor_time().saturating_sub(before))
}
