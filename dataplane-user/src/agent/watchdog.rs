//! The agent's own watchdog: ends the process where the thread `verdicts` hangs, so that the kubelet starts another. Where a service manager
//! has a watchdog, that one does so ([`super::notify`]), and this one does not run.
//!
//! The kernel lets verdicts lapse 3 s after the last renewal, so traffic flows by then. A new agent cuts again.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel},
    },
    time::Duration,
};

use super::{
    beat::{Beat, hangs},
    notify,
    threads::{Crew, Priority},
};
use crate::{flags::monotonic_ns, process::end_at_once};

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How late a look may be. A look that is later shows that this thread did not run either: the process was stopped or frozen, or the machine
/// has too few processors. `verdicts` may be alive then.
const LATE: Duration = Duration::from_millis(500);
/// How many looks in a row must find that `verdicts` hangs. So a thread that did not run for a moment is no reason.
const LOOKS: u32 = 5;
/// How long the log has to write the reason.
const LAST_LINE: Duration = Duration::from_millis(300);

/// The exit code, which is that of an agent one of whose threads has fallen.
const FAILED: i32 = 1;

/// The thread `watchdog`. It ends when this is dropped.
pub(super) struct Watchdog {
    _goes_on: SyncSender<()>,
}

impl Watchdog {
    /// Begins to look. `None` where a service manager has a watchdog.
    ///
    /// # Errors
    /// Where the kernel has no room for the threads.
    pub(super) fn start(beat: Arc<Beat>, crew: &Crew) -> io::Result<Option<Self>> {
        if notify::watchdog().is_some() {
            return Ok(None);
        }
        let (goes_on, ends) = sync_channel(1);
        let (last_line, wanted) = channel();
        // A line of the log needs memory, and a hung thread may have the allocator's lock. So another thread writes the line.
        crew.hand("watchdog-log", Priority::Usual, move || {
            if wanted.recv().is_ok() {
                tracing::error!(
                    event = "verdicts-hang",
                    "the thread `verdicts` does nothing; the agent ends at once, and its supervisor is to start it anew"
                );
            }
        })?;
        crew.hand("watchdog", Priority::First, move || {
            if watch(&beat, &ends) {
                let _fell = last_line.send(());
                std::thread::sleep(LAST_LINE);
                end_at_once(FAILED);
            }
        })?;
        Ok(Some(Self { _goes_on: goes_on }))
    }
}

/// Looks until the agent ends, or until `verdicts` hangs. Returns whether it hangs.
fn watch(beat: &Beat, ends: &Receiver<()>) -> bool {
    let mut looks = Looks::default();
    while ends.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if looks.find_hung(monotonic_ns(), beat.lives()) {
            return true;
        }
    }
    false
}

/// What the last looks found. Times are CLOCK_MONOTONIC, in ns, which stands still while the machine is suspended. Pure.
#[derive(Default)]
struct Looks {
    last: Option<u64>,
    /// How many looks in a row were on time and found that `verdicts` hangs.
    hung: u32,
}

impl Looks {
    /// Whether `verdicts`, which last gave a sign of life at `lives`, hangs for sure.
    fn find_hung(&mut self, now: u64, lives: u64) -> bool {
        let since = self.last.map_or(u64::MAX, |last| now.saturating_sub(last));
        let on_time = u128::from(since) <= (LOOK + LATE).as_nanos();
        self.last = Some(now);
        self.hung = if on_time && hangs(now, lives) { self.hung + 1 } else { 0 };
        self.hung >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Looks each second from `from` on, while `lives` stays. Returns the second at which `verdicts` is found to hang.
    fn found(looks: &mut Looks, from: u64, lives: u64, seconds: u64) -> Option<u64> {
        (0..=seconds).find(|second| looks.find_hung(from + second * SECOND, lives))
    }

    #[test]
    fn a_thread_that_gives_no_sign_of_life_is_found_after_its_time_and_five_looks() {
        let begin = 100 * SECOND;
        // Its time is over after 3 s, and the look at 4 s is the first to see it.
        assert_eq!(found(&mut Looks::default(), begin, begin, 60), Some(8));
    }

    #[test]
    fn a_thread_that_lives_is_left_alone() {
        let mut looks = Looks::default();
        for second in 100..400 {
            // It is as late as a thread that lives may be.
            assert!(!looks.find_hung(second * SECOND, (second - 3) * SECOND), "{second}");
        }
        // It hangs for a while, and goes on just before it would be ended.
        assert!((400..404).all(|second| !looks.find_hung(second * SECOND, 396 * SECOND)));
        assert!(!looks.find_hung(404 * SECOND, 404 * SECOND));
        assert!((405..409).all(|second| !looks.find_hung(second * SECOND, 400 * SECOND)), "it counts anew");
    }

    /// The process was stopped or frozen: both threads go on at the same time, and this one may be first.
    #[test]
    fn a_process_that_stood_still_has_its_time_anew() {
        let mut looks = Looks::default();
        assert_eq!(found(&mut looks, 100 * SECOND, 100 * SECOND, 7), None);
        let thawed = 127 * SECOND;
        assert_eq!(found(&mut looks, thawed, 100 * SECOND, 4), None);
        assert!(looks.find_hung(thawed + 5 * SECOND, 100 * SECOND), "it does hang");
    }

    /// The machine has so much to do that this thread is late each time.
    #[test]
    fn looks_that_are_late_show_nothing() {
        let mut looks = Looks::default();
        let late = |look: u64| 100 * SECOND + look * (SECOND + 501_000_000);
        assert!((0..100).all(|look| !looks.find_hung(late(look), 100 * SECOND)));
    }
}
