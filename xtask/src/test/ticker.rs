//! Measures how long the machine or the guest stood still, by the gaps of a ticking thread of the runner. A gap that a test's own watchdog reports
//! counts only up to the longest gap here: a test's process that alone was stopped has gaps too.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);

/// A thread that ticks until it is ended.
#[derive(Debug)]
pub(crate) struct Ticker {
    end: Sender<()>,
    thread: JoinHandle<Duration>,
}

impl Ticker {
    /// Begins to tick.
    pub(crate) fn start() -> Self {
        let (end, ended) = mpsc::channel();
        // The time counts from here and not from the thread's first turn, since the machine may stand still before that turn.
        let mut before = Instant::now();
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            loop {
                let over = ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout);
                longest = longest.max(before.elapsed());
                if over {
                    return longest;
                }
                before = Instant::now();
            }
        });
        Self { end, thread }
    }

    /// Ends the thread, and returns the longest gap.
    pub(crate) fn end(self) -> Duration {
        drop(self.end);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stand_still_is_seen() {
        let ticker = Ticker::start();
        let script = "kill -STOP $PPID; sleep 0.3; kill -CONT $PPID";
        assert!(Command::new("sh").args(["-c", script]).status().expect("sh").success());
        let longest = ticker.end();
        assert!(longest > Duration::from_millis(250), "{longest:?}");
    }
}
