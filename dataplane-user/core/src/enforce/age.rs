//! How old the view is whose backends the maps hold, and whether that is too old to cut by it: addresses of pods that went are given to others.

use std::time::Duration;

use super::{now::Now, output::Event};

/// The age of the view.
#[derive(Debug)]
pub(super) struct Age {
    /// From then on nothing is cut by it. `None`: it holds however old it is.
    max: Option<Duration>,
    /// When its source last said that it is so, by CLOCK_BOOTTIME; before the first view when the agent began.
    confirmed: Duration,
    is_over: bool,
}

impl Age {
    pub(super) const fn new(max: Option<Duration>, now: Now) -> Self {
        Self { max, confirmed: now.boot, is_over: false }
    }

    /// Its source said then (CLOCK_BOOTTIME) that it is so.
    pub(super) fn confirm(&mut self, at: Duration) {
        self.confirmed = self.confirmed.max(at);
    }

    /// What follows from the time, where that is news.
    pub(super) fn follow(&mut self, now: Now) -> Option<Event> {
        let max = self.max?;
        let is_over = self.left(now).is_some_and(|left| left.is_zero());
        if std::mem::replace(&mut self.is_over, is_over) == is_over {
            return None;
        }
        Some(if is_over { Event::ViewTooOld(max) } else { Event::ViewConfirmed })
    }

    fn left(&self, now: Now) -> Option<Duration> {
        Some(self.max?.saturating_sub(now.boot.saturating_sub(self.confirmed)))
    }

    /// Whether it is too old, as last followed.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// When it is too old (CLOCK_MONOTONIC, ns); `None` where it is, or never will be.
    pub(super) fn deadline(&self, now: Now) -> Option<u64> {
        self.left(now).filter(|_| !self.is_over).map(|left| now.later(left))
    }
}
