//! After how long the watches find a fault, and begin anew.

use std::time::Duration;

use kube::runtime::{utils::Backoff, watcher::DefaultBackoff};

/// How many times faster the watches find faults than they do by default. Tests do not have the time. Periods that the API server decides
/// are not in here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(u32);

impl Default for Pace {
    fn default() -> Self {
        Self(1)
    }
}

impl Pace {
    /// So many times faster. 0 counts as 1.
    pub fn faster(times: u32) -> Self {
        Self(times.max(1))
    }

    /// This period, which is the default one, at this pace.
    pub(crate) fn of(self, period: Duration) -> Duration {
        period / self.0
    }

    /// The pauses between two tries of a watch: from 0.8 s to 30 s, and up to twice that by chance. They are short again after two minutes
    /// without a pause.
    pub(super) fn pauses(self) -> Pauses {
        Pauses { pace: self, by_default: DefaultBackoff::default() }
    }
}

/// See [`Pace::pauses`].
pub(super) struct Pauses {
    pace: Pace,
    by_default: DefaultBackoff,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.by_default.next().map(|pause| self.pace.of(pause))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.by_default.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/kubernetes.md names these bounds.
    #[test]
    fn pauses_grow_from_a_second_to_half_a_minute_or_a_whole_one() {
        for (pace, times) in [(Pace::default(), 1), (Pace::faster(0), 1), (Pace::faster(5), 5)] {
            let mut pauses = pace.pauses();
            let first = pauses.next().unwrap() * times;
            assert!((800..=1_600).contains(&first.as_millis()), "{first:?}");
            let last = pauses.nth(10).unwrap() * times;
            assert!((29_999..=60_000).contains(&last.as_millis()), "{last:?}");
            pauses.reset();
            let again = pauses.next().unwrap() * times;
            assert!(again < Duration::from_secs(2), "{again:?}");
        }
    }
}
