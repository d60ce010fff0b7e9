//! The guests' clock: the processor's own counter, at the rate at which this machine counts.
//!
//! The programs of Kubernetes read the clock all the time. Each look at the HPET, which other guests use, leaves the emulated processor. A look at the counter
//! does not. The guest cannot measure the counter's rate on a busy machine, so it is told.
#![expect(unsafe_code, reason = "the processor's counter has no safe reader")]

use std::arch::x86_64::_rdtsc;
use std::thread;
use std::time::{Duration, Instant};

/// For how long the counter is watched. Both ends are known to within a microsecond.
const WATCHED: Duration = Duration::from_millis(500);
/// The best of so many readings of one moment counts: the others were interrupted.
const READINGS: usize = 50;

/// The kernel's parameters for this clock.
pub(super) fn parameters() -> String {
    let (from, first) = reading();
    thread::sleep(WATCHED);
    let (to, last) = reading();
    let khz = rate(last.wrapping_sub(first), to.duration_since(from));
    format!("tsc=reliable clocksource=tsc tsc_early_khz={khz}")
}

/// A moment, and the counter in it.
fn reading() -> (Instant, u64) {
    let one = |_| {
        let before = Instant::now();
        // SAFETY: the instruction only reads a register, and user space may execute it: Linux forbids it to none of its own programs.
        let counter = unsafe { _rdtsc() };
        (before.elapsed(), before, counter)
    };
    let best = (0..READINGS).map(one).min_by_key(|(took, _, _)| *took);
    best.map_or_else(|| (Instant::now(), 0), |(took, before, counter)| (before + took / 2, counter))
}

/// The rate in kHz.
fn rate(counted: u64, took: Duration) -> u64 {
    let khz = u128::from(counted) * 1_000_000 / took.as_nanos().max(1);
    u64::try_from(khz).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_in_kilohertz() {
        assert_eq!(rate(2_600_000_000, Duration::from_secs(1)), 2_600_000);
        assert_eq!(rate(1_300_000_000, Duration::from_millis(500)), 2_600_000);
    }

    #[test]
    fn the_counter_counts() {
        let (from, first) = reading();
        thread::sleep(Duration::from_millis(20));
        let (to, last) = reading();
        let khz = rate(last - first, to - from);
        assert!((100_000..20_000_000).contains(&khz), "{khz} kHz");
    }
}
