//! When the API server answered last.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::{
    enforce::{Now, SharedSettings},
    flags::now,
    source::kubernetes::{ServerClock, shared_settings},
};

/// The answers of an API server: its clock, and when it answered last. A clone shows the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    clock: ServerClock,
    /// When the last answer came (CLOCK_BOOTTIME).
    last: Arc<watch::Sender<Option<Duration>>>,
}

impl Answers {
    /// Notes the head of a successful answer that came just now.
    pub(super) fn note(&self, head: &HeaderMap) {
        let now = now();
        self.clock.note(head, now);
        self.last.send_replace(Some(now.boot));
    }

    /// The machine's clocks, with the server's time in place of the wall clock. `None` until the server has told its time.
    pub(super) fn now(&self) -> Option<Now> {
        let now = now();
        let wall = self.clock.shows(now)?;
        Some(Now { wall, ..now })
    }

    /// The time that the clock furthest behind shows, where the servers' clocks differ. `None` until a server has told its time.
    pub(super) fn at_least(&self) -> Option<Timestamp> {
        self.clock.shows_at_least(now())
    }

    /// What agents make of this content of the settings now. The error names the field.
    pub(super) fn settings(&self, spec: &serde_json::Value) -> Result<SharedSettings, String> {
        shared_settings(spec, &self.clock, now())
    }

    /// How long ago the server answered last. `None`: it never did.
    pub(super) fn since_last(&self) -> Option<Duration> {
        let last = (*self.last.borrow())?;
        Some(now().boot.saturating_sub(last))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header::DATE};

    use super::*;

    #[test]
    fn the_time_goes_on_after_an_answer() {
        let answers = Answers::default();
        assert!(answers.now().is_none() && answers.since_last().is_none());
        answers.note(&HeaderMap::new());
        assert!(answers.now().is_none() && answers.since_last().is_some());
        let date = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT");
        answers.note(&HeaderMap::from_iter([(DATE, date)]));
        let first: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        let wall = answers.now().unwrap().wall;
        assert!(wall >= first && wall < first + Duration::from_secs(60), "{wall}");
        answers.note(&HeaderMap::new());
        assert!(answers.now().unwrap().wall >= wall);
    }

    #[test]
    fn a_server_whose_clock_is_a_day_fast_moves_what_cannot_be_taken_back_by_nothing() {
        let answers = Answers::default();
        for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "Mon, 07 Nov 1994 08:49:37 GMT"] {
            answers.note(&HeaderMap::from_iter([(DATE, HeaderValue::from_static(date))]));
        }
        let noted: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        let least = answers.at_least().unwrap();
        assert!(least >= noted && least < noted + Duration::from_secs(60), "{least}");
        assert!(answers.now().unwrap().wall >= noted + Duration::from_secs(86_400));
    }
}
