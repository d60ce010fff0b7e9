//! Tells a service manager that listens (sd_notify(3)) that the agent runs, what it does, that `verdicts` is alive, and that the agent
//! ends.
//!
//! A thread of its own does so: a socket that nobody reads holds up whoever writes to it (unix(7)), and then only this thread.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel},
    },
    time::Duration,
};

use sd_notify::NotifyState;

use super::{
    beat::{Beat, hangs},
    sight::Sight,
    threads::{Crew, Priority},
};
use crate::{flags::monotonic_ns, plan::Mode};

/// The longest time between two looks whether there is something new to tell.
const LOOK: Duration = Duration::from_secs(1);
/// How long the agent's end waits until the service manager is told of it.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Whether a service manager listens.
fn listens() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

/// The limit of the service manager's watchdog. `None` where it has none: then the agent's own one runs ([`super::watchdog`]).
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|limit| listens() && !limit.is_zero())
}

/// The thread `notify`.
pub(super) struct Notifier {
    /// Dropped once the agent ends.
    goes_on: Option<SyncSender<()>>,
    told: Receiver<()>,
}

impl Notifier {
    /// Tells that the agent runs, and from then on what it does. `None` where no service manager listens.
    ///
    /// # Errors
    /// Where the kernel has no room for the thread.
    pub(super) fn start(sight: Sight, beat: Arc<Beat>, crew: &Crew) -> io::Result<Option<Self>> {
        Self::begin(Box::new(move || status(&sight)), beat, crew)
    }

    /// Tells that the agent is off, and that it is alive. `None` where no service manager listens.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub(super) fn of_off(status: String, beat: Arc<Beat>, crew: &Crew) -> io::Result<Option<Self>> {
        Self::begin(Box::new(move || status.clone()), beat, crew)
    }

    /// Ends the thread, and tells nothing: the agent goes on, and another thread tells of it.
    pub(super) fn leave(mut self) {
        if let Some(goes_on) = self.goes_on.take() {
            let _ended_already = goes_on.try_send(());
        }
    }

    fn begin(status: Status, beat: Arc<Beat>, crew: &Crew) -> io::Result<Option<Self>> {
        if !listens() {
            return Ok(None);
        }
        let (goes_on, ends) = sync_channel(1);
        let (over, told) = channel();
        // At this priority the thread waits for a socket alone and not for a processor: on a busy machine an agent that works must
        // not be taken for one that hangs.
        crew.hand("notify", Priority::First, move || {
            let mut teller = Teller { now: status, beat, status: String::new(), failed: false };
            teller.follow(&ends);
            let _late = over.send(());
        })?;
        Ok(Some(Self { goes_on: Some(goes_on), told }))
    }
}

impl Drop for Notifier {
    /// The agent ends: that is told, unless nobody listens.
    fn drop(&mut self) {
        drop(self.goes_on.take());
        let _told_or_late = self.told.recv_timeout(LAST_WORD);
    }
}

/// The agent's state, in a line.
type Status = Box<dyn Fn() -> String + Send>;

struct Teller {
    now: Status,
    beat: Arc<Beat>,
    /// The status as it was last told.
    status: String,
    /// The service manager could not be told, and the log says so.
    failed: bool,
}

impl Teller {
    fn follow(&mut self, ends: &Receiver<()>) {
        let mut watchdog = watchdog().map(Watchdog::new);
        let look = watchdog.as_ref().map_or(LOOK, |watchdog| watchdog.look().min(LOOK));
        self.tell(&[NotifyState::Ready]);
        loop {
            let status = (self.now)();
            if status != self.status {
                self.tell(&[NotifyState::Status(&status)]);
                self.status = status;
            }
            if watchdog.as_mut().is_some_and(|watchdog| watchdog.is_due(monotonic_ns(), self.beat.lives())) {
                self.tell(&[NotifyState::Watchdog]);
            }
            match ends.recv_timeout(look) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) => return,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.tell(&[NotifyState::Stopping, NotifyState::Status("ends; verdicts lapse in 3 s")]);
    }

    fn tell(&mut self, what: &[NotifyState<'_>]) {
        let result = sd_notify::notify(what);
        if let Err(error) = &result
            && !self.failed
        {
            tracing::warn!(event = "notify-failed", %error, "the service manager cannot be told; see NOTIFY_SOCKET");
        }
        self.failed = result.is_err();
    }
}

/// The agent's work, in a line.
fn status(sight: &Sight) -> String {
    let world = sight.world();
    let cut = world.held.enforced.iter().count();
    let observed = world.held.observed.iter().count();
    let mode = match world.held.mode {
        Mode::Enforce => "enforces",
        Mode::Observe => "observes",
    };
    format!("{mode}; nodes cut: {cut}, observed: {observed}")
}

/// When a watchdog is to be told that the agent is alive. Times are CLOCK_MONOTONIC, in ns. Pure.
struct Watchdog {
    /// How often the watchdog is told. That is sooner than after the half of its limit that sd_watchdog_enabled(3) asks for: this thread
    /// may be late.
    every: Duration,
    told: Option<u64>,
}

impl Watchdog {
    /// A watchdog with this limit.
    fn new(limit: Duration) -> Self {
        Self { every: limit / 4, told: None }
    }

    /// How often to look whether it is time.
    fn look(&self) -> Duration {
        self.every / 2
    }

    /// Whether the watchdog is to be told now. Nothing is told where the agent hangs.
    fn is_due(&mut self, now: u64, lives: u64) -> bool {
        let since = self.told.map_or(u64::MAX, |told| now.saturating_sub(told));
        let due = u128::from(since) >= self.every.as_nanos();
        if !due || hangs(now, lives) {
            return false;
        }
        self.told = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use nodefence_common::VERDICT_LIFETIME_NS;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_watchdog_is_fed_well_before_its_time_and_only_while_verdicts_are_renewed() {
        let mut watchdog = Watchdog::new(Duration::from_secs(20));
        let step = u64::try_from(watchdog.look().as_nanos()).unwrap();
        let mut now = 100 * SECOND;
        let mut last = now;
        let mut longest = 0;
        assert!(watchdog.is_due(now, now));
        for _ in 0..40 {
            now += step;
            // Looked each second.
            if watchdog.is_due(now, now - SECOND) {
                longest = longest.max(now - last);
                last = now;
            }
        }
        assert!(longest > 0 && longest < 10 * SECOND, "{longest}");
        // The thread `verdicts` stands still.
        let alive = now;
        let fed = |watchdog: &mut Watchdog, at| watchdog.is_due(at, alive);
        assert!((1..100).all(|after| !fed(&mut watchdog, alive + VERDICT_LIFETIME_NS + after * SECOND)));
        // The thread `verdicts` goes on.
        let later = alive + 200 * SECOND;
        assert!(watchdog.is_due(later, later));
        assert!(!watchdog.is_due(later + step, later + step), "told a moment ago");
    }
}
