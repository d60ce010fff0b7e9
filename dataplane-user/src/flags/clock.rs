use std::{sync::LazyLock, time::Duration};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::enforce::Now;

/// Reads all three clocks at once.
pub fn now() -> Now {
    Now { mono: monotonic_ns(), boot: read(ClockId::CLOCK_BOOTTIME), wall: Timestamp::now() }
}

/// CLOCK_MONOTONIC of the machine in ns: the clock of `bpf_ktime_get_ns`, and so of every verdict. A time namespace (5.6) shifts the
/// clock that this process reads, but not the clock that the kernel programs read.
pub fn monotonic_ns() -> u64 {
    let own = i128::try_from(read(ClockId::CLOCK_MONOTONIC).as_nanos()).unwrap_or(i128::MAX);
    u64::try_from(own - i128::from(*OFFSET)).unwrap_or(0)
}

/// Nanoseconds by which this process's time namespace is ahead of the machine.
static OFFSET: LazyLock<i64> = LazyLock::new(|| {
    // The file has the offsets of the namespace for children. A process that was started in a time namespace is itself in it.
    std::fs::read_to_string("/proc/self/timens_offsets")
        .ok()
        .as_deref()
        .and_then(monotonic_offset)
        .unwrap_or(0)
});

/// Reads lines of a clock's name or number, seconds and nanoseconds (proc_timens_show_offsets, kernel/time/namespace.c).
fn monotonic_offset(text: &str) -> Option<i64> {
    let line = text.lines().find(|line| matches!(line.split_whitespace().next(), Some("monotonic" | "1")))?;
    let mut words = line.split_whitespace().skip(1).map(str::parse::<i64>);
    let seconds = words.next()?.ok()?;
    let nanoseconds = words.next()?.ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// What tells this boot of the machine from others. Empty where the kernel does not say it.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn read(clock: ClockId) -> Duration {
    // Every kernel that can run the agent has these clocks, so an error cannot occur.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_is_taken_out() {
        let text = "monotonic         -1000         5\nboottime           7         0\n";
        assert_eq!(monotonic_offset(text), Some(-999_999_999_995));
        assert_eq!(monotonic_offset("boottime 7 0\n"), None);
        assert_eq!(monotonic_offset("monotonic seven 0\n"), None);
    }
}
