use std::{sync::LazyLock, time::Duration};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::enforce::Now;

/// Reads the clocks, together.
pub fn now() -> Now {
    Now { mono: monotonic_ns(), boot: read(ClockId::CLOCK_BOOTTIME), wall: Timestamp::now() }
}

/// CLOCK_MONOTONIC of the machine in ns: the clock of `bpf_ktime_get_ns`, and so of every verdict. A time namespace (5.6) shifts what
/// this process reads, not what the kernel programs do.
pub fn monotonic_ns() -> u64 {
    let own = i128::try_from(read(ClockId::CLOCK_MONOTONIC).as_nanos()).unwrap_or(i128::MAX);
    u64::try_from(own - i128::from(*OFFSET)).unwrap_or(0)
}

/// Nanoseconds by which this process's time namespace is ahead of the machine.
static OFFSET: LazyLock<i64> = LazyLock::new(|| {
    // Those of the namespace that children get; a process that was started in it is in it.
    std::fs::read_to_string("/proc/self/timens_offsets")
        .ok()
        .as_deref()
        .and_then(monotonic_offset)
        .unwrap_or(0)
});

/// Lines of a clock's name or number, seconds and nanoseconds (proc_timens_show_offsets, kernel/time/namespace.c).
fn monotonic_offset(text: &str) -> Option<i64> {
    let line = text.lines().find(|line| matches!(line.split_whitespace().next(), Some("monotonic" | "1")))?;
    let mut words = line.split_whitespace().skip(1).map(str::parse::<i64>);
    let (seconds, nanoseconds) = (words.next()?.ok()?, words.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

fn read(clock: ClockId) -> Duration {
    // The clocks exist on every kernel that can run this; an error cannot come back.
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
