//! How long this thread had a processor for something.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Does something, and tells how long this thread had a processor for it.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    // The clock exists on every kernel that can run this.
    let used = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    let before = used();
    let done = work();
    (done, used().saturating_sub(before))
}
