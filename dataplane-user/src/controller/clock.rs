//! When the API server answered last.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use tokio::sync::watch;

use crate::{enforce::Now, flags::now, source::kubernetes::ServerClock};

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

    /// How long ago the server answered last. `None`: it never did.
    pub(super) fn since_last(&self) -> Option<Duration> {
        let last = (*self.last.borrow())?;
        Some(now().boot.saturating_sub(last))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header::DATE};
    use jiff::Timestamp;

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
}
