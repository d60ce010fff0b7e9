//! The API server's clock, by the `Date` of its answers, and when it answered last.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::{enforce::Now, flags::now, source::kubernetes::shown};

/// What an answer says.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The server's time, where the answer has it. It has no fractions of seconds.
    date: Option<Timestamp>,
    /// When the answer came (CLOCK_BOOTTIME).
    came: Duration,
}

/// The clock of an API server, as far as its answers show it. A clone shows the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerClock(Arc<watch::Sender<Option<Reading>>>);

impl ServerClock {
    /// Notes the head of a successful answer that came just now.
    pub(super) fn note(&self, head: &HeaderMap) {
        let date = shown(head);
        self.0.send_modify(|last| {
            let before = last.and_then(|last| last.date_at(now().boot));
            *last = Some(Reading { date: date.or(before), came: now().boot });
        });
    }

    /// The machine's clocks, with the server's time in place of the wall clock. `None` until the server has told its time.
    pub(super) fn now(&self) -> Option<Now> {
        let now = now();
        let wall = (*self.0.borrow())?.date_at(now.boot)?;
        Some(Now { wall, ..now })
    }

    /// How long ago the server answered last. `None`: it never did.
    pub(super) fn since_last(&self) -> Option<Duration> {
        let last = (*self.0.borrow())?;
        Some(now().boot.saturating_sub(last.came))
    }
}

impl Reading {
    /// The server's time at a later time of CLOCK_BOOTTIME.
    fn date_at(&self, boot: Duration) -> Option<Timestamp> {
        self.date?.checked_add(boot.saturating_sub(self.came)).ok()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header::DATE};

    use super::*;

    #[test]
    fn the_clock_goes_on_after_an_answer() {
        let clock = ServerClock::default();
        assert!(clock.now().is_none() && clock.since_last().is_none());
        clock.note(&HeaderMap::new());
        assert!(clock.now().is_none() && clock.since_last().is_some());
        let date = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT");
        clock.note(&HeaderMap::from_iter([(DATE, date)]));
        let first: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        let wall = || clock.now().unwrap().wall;
        assert!(wall() >= first && wall() < first + Duration::from_secs(60), "{}", wall());
        clock.note(&HeaderMap::new());
        assert!(wall() >= first && wall() < first + Duration::from_secs(60), "{}", wall());
        let reading = Reading { date: Some(first), came: Duration::from_secs(5) };
        assert_eq!(reading.date_at(Duration::from_secs(65)).unwrap().to_string(), "1994-11-06T08:50:37Z");
    }
}
