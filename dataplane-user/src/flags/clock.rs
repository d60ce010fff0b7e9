use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// The two clocks that a flag's end is held against, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The wall clock, which may be set at any time.
    pub wall: Timestamp,
    /// CLOCK_BOOTTIME: never set, and runs on while the machine sleeps.
    pub boot: Duration,
}

impl Clocks {
    /// Reads both.
    pub fn now() -> Self {
        Self { wall: Timestamp::now(), boot: read(ClockId::CLOCK_BOOTTIME) }
    }
}

/// CLOCK_MONOTONIC in ns: the clock of `bpf_ktime_get_ns`, and so of every verdict.
pub fn monotonic_ns() -> u64 {
    u64::try_from(read(ClockId::CLOCK_MONOTONIC).as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> Duration {
    // The clocks exist on every kernel that can run this; an error cannot come back.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}
