//! The time that the driver hands in, and the numbers of views and requests.

use std::time::Duration;

use jiff::Timestamp;

/// Nanoseconds in a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// The clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CLOCK_MONOTONIC in ns, by which verdicts lapse.
    pub mono: u64,
    /// CLOCK_BOOTTIME, by which claims end: it is never set, and runs on while the machine sleeps.
    pub boot: Duration,
    /// The wall clock, which may be set at any time.
    pub wall: Timestamp,
}

impl Now {
    /// The time (CLOCK_MONOTONIC, ns) when `left` is over.
    pub(super) fn later(self, left: Duration) -> u64 {
        self.mono.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The number of a view: a later view has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The number of a request: the driver knows who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);
