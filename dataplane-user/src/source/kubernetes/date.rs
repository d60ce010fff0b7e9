//! The API server's clock, as the header `Date` of its answers shows it. Flags and pauses end by that clock, so that they end on all nodes at once,
//! whatever a node's own clock shows.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use tokio::sync::watch;

use crate::enforce::Now;

/// Clocks that differ by no more are the same. The header has no fractions of a second, and an answer takes a while.
const SAME: SignedDuration = SignedDuration::from_secs(2);
/// By how much the time of the header is too early on average.
const CUT_OFF: SignedDuration = SignedDuration::from_millis(500);

/// By how much the API server's clock is ahead of CLOCK_BOOTTIME. That clock is never set, so a wall clock that is set moves no end.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerClock(Arc<watch::Sender<Option<SignedDuration>>>);

impl ServerClock {
    /// Notes the time of an answer that has just come.
    pub(super) fn note(&self, headers: &HeaderMap, now: Now) {
        let Some(shown) = shown(headers) else { return };
        let ahead = ahead(shown, now) + CUT_OFF;
        self.0.send_if_modified(|known| {
            let is_same = known.is_some_and(|known| (known - ahead).abs() <= SAME);
            if !is_same {
                *known = Some(ahead);
            }
            !is_same
        });
    }

    /// A receiver that learns when the clock is another.
    pub(super) fn changes(&self) -> watch::Receiver<Option<SignedDuration>> {
        self.0.subscribe()
    }

    /// The clock as it is known now. Without any answer that had a date, the own wall clock counts as it shows now.
    pub(super) fn read(&self, now: Now) -> ServerTime {
        self.0.send_if_modified(|known| {
            let is_unknown = known.is_none();
            known.get_or_insert(ahead(now.wall, now));
            is_unknown
        });
        ServerTime(self.0.borrow().unwrap_or_default())
    }
}

/// The API server's clock as it was known at one moment: how far it is ahead of CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerTime(SignedDuration);

impl ServerTime {
    /// When the API server's clock shows this time, by CLOCK_BOOTTIME; zero where that was before the boot.
    pub(super) fn boot_time(self, at: Timestamp) -> Duration {
        Duration::try_from(at.as_duration() - self.0).unwrap_or(Duration::ZERO)
    }
}

/// How far a clock that shows this time now is ahead of CLOCK_BOOTTIME.
fn ahead(shown: Timestamp, now: Now) -> SignedDuration {
    shown.as_duration() - SignedDuration::try_from(now.boot).unwrap_or(SignedDuration::MAX)
}

/// The time of an answer, by the API server's clock. It has no fractions of seconds.
pub(crate) fn shown(headers: &HeaderMap) -> Option<Timestamp> {
    headers.get(DATE).and_then(|date| date.to_str().ok()).and_then(instant)
}

/// A date as in `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
pub(crate) fn instant(date: &str) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "Sat, 28 Nov 2026 12:00:00 GMT";

    fn noon() -> Timestamp {
        "2026-11-28T12:00:00Z".parse().expect("a time")
    }

    fn headers(date: &str) -> HeaderMap {
        [(DATE, date.parse().expect("a header"))].into_iter().collect()
    }

    /// A node that has run for so long, and whose wall clock is an hour slow at noon.
    fn at(boot: u64) -> Now {
        let wall =
            noon() - SignedDuration::from_hours(1) + SignedDuration::from_secs(boot.cast_signed() - 1_000);
        Now { mono: 0, boot: Duration::from_secs(boot), wall }
    }

    #[test]
    fn an_end_comes_at_the_server_s_time_on_a_node_that_is_an_hour_off() {
        let clock = ServerClock::default();
        clock.note(&headers(NOON), at(1_000));
        let ends = clock.read(at(1_000)).boot_time(noon() + SignedDuration::from_mins(10));
        assert_eq!(ends, Duration::from_millis(1_599_500));
        // The wall clock is set meanwhile: nothing moves.
        let set = Now { wall: noon(), ..at(1_100) };
        assert_eq!(clock.read(set).boot_time(noon() + SignedDuration::from_mins(10)), ends);
        assert_eq!(clock.read(at(1_000)).boot_time(noon() - SignedDuration::from_mins(17)), Duration::ZERO);
    }

    #[test]
    fn without_a_date_the_own_clock_counts() {
        let clock = ServerClock::default();
        clock.note(&headers("today"), at(1_000));
        let ends = clock.read(at(1_000)).boot_time(noon());
        assert_eq!(ends, Duration::from_secs(1_000 + 3_600));
    }

    #[test]
    fn only_a_clock_that_moves_by_more_than_two_seconds_is_news() {
        let clock = ServerClock::default();
        let mut changes = clock.changes();
        let mut is_news = |date: &str, boot| {
            clock.note(&headers(date), at(boot));
            let is = changes.has_changed().expect("it lives");
            changes.mark_unchanged();
            is
        };
        assert!(is_news(NOON, 1_000));
        assert!(!is_news("Sat, 28 Nov 2026 12:00:08 GMT", 1_010));
        assert!(!is_news("Sat, 28 Nov 2026 12:00:12 GMT", 1_010));
        assert!(is_news("Sat, 28 Nov 2026 12:00:13 GMT", 1_010));
        assert!(is_news("Sat, 28 Nov 2026 11:00:13 GMT", 1_010));
    }
}
