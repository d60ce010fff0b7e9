//! The resources that the agent's process has used.
use std::{
    ops::Sub,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{time::ClockId, unistd::Pid};

use super::calls::{Calls, Count};

/// Reads the resources that one process has used.
pub(super) struct Meter {
    clock: ClockId,
    calls: Calls,
}

/// The resources used up to one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    at: Instant,
    processor: Duration,
    calls: Count,
}

/// The resources used between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub(super) seconds: f64,
    /// Processor time of all its threads, in its own code and in the kernel, in milliseconds.
    pub(super) processor_ms: f64,
    pub(super) bpf: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
}

impl Meter {
    pub(super) fn of(process: Pid) -> anyhow::Result<Self> {
        let clock = ClockId::pid_cpu_clock_id(process).context("the process has no clock")?;
        Ok(Self { clock, calls: Calls::of(process)? })
    }

    pub(super) fn now(&self) -> anyhow::Result<Reading> {
        let processor = self.clock.now().context("cannot read the process' clock")?.into();
        Ok(Reading { at: Instant::now(), processor, calls: self.calls.now()? })
    }
}

impl Sub for Reading {
    type Output = Spent;

    fn sub(self, earlier: Self) -> Spent {
        let count = |of: fn(&Count) -> u64| of(&self.calls).saturating_sub(of(&earlier.calls)) as f64;
        Spent {
            seconds: (self.at - earlier.at).as_secs_f64(),
            processor_ms: self.processor.saturating_sub(earlier.processor).as_secs_f64() * 1e3,
            bpf: count(|calls| calls.bpf),
            sent: count(|calls| calls.sent),
            received: count(|calls| calls.received),
        }
    }
}

impl Spent {
    /// Calls of bpf(2) and netlink together.
    pub(super) fn calls(&self) -> f64 {
        self.bpf + self.sent + self.received
    }

    /// Used processor time, in percent of one processor.
    pub(super) fn share(&self) -> f64 {
        self.processor_ms / 10.0 / self.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_percent_of_one_processor() {
        let spent = Spent { seconds: 10.0, processor_ms: 100.0, bpf: 10.0, sent: 20.0, received: 30.0 };
        assert_eq!((spent.share(), spent.calls()), (1.0, 60.0));
    }
}
