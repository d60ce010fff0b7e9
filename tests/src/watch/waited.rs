//! Measures how long a process's threads were runnable but did not run.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use super::locked::locked;

/// A reading that comes later than this after the last one proves nothing.
const LATEST: Duration = Duration::from_millis(400);
/// A thread that waited for at least this part of the time between two readings counts as one that waited all the time.
const ALL_THE_TIME: f64 = 0.8;

/// The readings of one process.
#[derive(Debug)]
pub(super) struct Waited {
    pid: i32,
    threads: Mutex<Threads>,
}

#[derive(Debug)]
struct Threads {
    looked: Instant,
    /// The waits of each thread, by its id.
    waits: BTreeMap<String, Wait>,
    longest: Duration,
}

/// A thread's waits for a processor.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    /// The sum of all waits, as the kernel counts it.
    all: Duration,
    /// The length of the wait without a pause that lasted up to the last reading.
    now: Duration,
}

impl Wait {
    /// Adds a reading of the kernel's sum, `after` the last reading. Many short waits are no long wait: they add up only between two readings.
    fn next(&mut self, all: Duration, after: Duration) {
        let more = all.saturating_sub(self.all);
        let goes_on = more.as_secs_f64() >= after.as_secs_f64() * ALL_THE_TIME;
        self.now = if goes_on { self.now + more } else { more };
        self.all = all;
    }
}

impl Waited {
    pub(super) fn of(pid: i32) -> Self {
        let threads = Threads { looked: Instant::now(), waits: BTreeMap::new(), longest: Duration::ZERO };
        Self { pid, threads: Mutex::new(threads) }
    }

    /// Reads all threads once more. `/proc/PID/task/TID/schedstat` has the time on a processor, the time waited for one, and the number of turns
    /// (Documentation/scheduler/sched-stats.rst).
    pub(super) fn look(&self) {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else { return };
        let mut threads = locked(&self.threads);
        let after = threads.looked.elapsed();
        threads.looked = Instant::now();
        for task in tasks.flatten() {
            let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let Some(waited) = text.split(' ').nth(1).and_then(|number| number.parse().ok()) else {
                continue;
            };
            let wait = threads.waits.entry(task.file_name().to_string_lossy().into_owned()).or_default();
            wait.next(Duration::from_nanos(waited), after);
            let now = wait.now;
            // A late reading may add up many short waits, so it does not count.
            if after <= LATEST {
                threads.longest = threads.longest.max(now);
            }
        }
    }

    /// The longest wait of any thread without a pause.
    pub(super) fn longest(&self) -> Duration {
        locked(&self.threads).longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(200);

    /// The longest wait in milliseconds, if the kernel counted this many milliseconds more at each reading.
    fn longest(more: &[u64]) -> u128 {
        let mut wait = Wait::default();
        let mut all = Duration::ZERO;
        let mut longest = Duration::ZERO;
        for more in more {
            all += Duration::from_millis(*more);
            wait.next(all, LOOK);
            longest = longest.max(wait.now);
        }
        longest.as_millis()
    }

    #[test]
    fn many_short_waits_are_no_long_one() {
        assert_eq!(longest(&[60, 60, 60, 60, 60, 60]), 60);
        assert_eq!(longest(&[10, 150, 20]), 150);
    }

    #[test]
    fn a_wait_goes_on_over_several_looks() {
        assert_eq!(longest(&[150, 200, 199, 30]), 549);
        assert_eq!(longest(&[200, 0, 200]), 200);
    }
}
