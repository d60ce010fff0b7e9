//! How old the view is whose backends the maps hold, and whether it is too old to cut by: addresses of pods that are gone are given to other pods.

use std::time::Duration;

use super::{now::Now, output::Event};

/// The age of the view.
#[derive(Debug)]
pub(super) struct Age {
    /// At this age nothing is cut by the view any more. `None`: the view holds however old it is.
    max: Option<Duration>,
    /// When the source last confirmed the view, by CLOCK_BOOTTIME; before the first view, when the agent began.
    confirmed: Duration,
    /// The part of the age that lies before the boot of the machine.
    before_boot: Duration,
    /// A view came. The first one may be older than the agent: an earlier agent may have kept it.
    has_view: bool,
    is_over: bool,
}

impl Age {
    pub(super) const fn new(max: Option<Duration>, now: Now) -> Self {
        Self { max, confirmed: now.boot, before_boot: Duration::ZERO, has_view: false, is_over: false }
    }

    /// Notes that the source confirmed the view at this time.
    pub(super) fn confirm(&mut self, at: Now, now: Now) {
        let is_first = !std::mem::replace(&mut self.has_view, true);
        if is_first || at.boot >= self.confirmed {
            self.confirmed = at.boot;
            self.before_boot = before_boot(at, now);
        }
    }

    /// Follows the time. Gives an event where the view became too old, or is so no more.
    pub(super) fn follow(&mut self, now: Now) -> Option<Event> {
        let max = self.max?;
        let is_over = self.left(now).is_some_and(|left| left.is_zero());
        if std::mem::replace(&mut self.is_over, is_over) == is_over {
            return None;
        }
        Some(if is_over { Event::ViewTooOld(max) } else { Event::ViewConfirmed })
    }

    fn left(&self, now: Now) -> Option<Duration> {
        let age = now.boot.saturating_sub(self.confirmed).saturating_add(self.before_boot);
        Some(self.max?.saturating_sub(age))
    }

    /// Whether the view was too old when the time was last followed.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// When the view will be too old (CLOCK_MONOTONIC, ns); `None` where it already is, or never will be.
    pub(super) fn deadline(&self, now: Now) -> Option<u64> {
        self.left(now).filter(|_| !self.is_over).map(|left| now.later(left))
    }
}

/// The part of an age that lies before the boot of the machine, which the wall clock alone counts. Of such a time CLOCK_BOOTTIME says 0.
fn before_boot(at: Now, now: Now) -> Duration {
    if !at.boot.is_zero() {
        return Duration::ZERO;
    }
    let by_wall = Duration::try_from(now.wall.duration_since(at.wall)).unwrap_or(Duration::ZERO);
    by_wall.saturating_sub(now.boot)
}
