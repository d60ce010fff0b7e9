//! The API server's clock, as the header `Date` of its answers shows it. Flags and pauses end by that clock, so that they end on all nodes at once,
//! whatever a node's own clock shows.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use tokio::sync::watch;

use crate::enforce::Now;

/// An answer that shows a clock further ahead by no more says nothing new. The header has no fractions of a second, and an answer takes a while.
const SAME: SignedDuration = SignedDuration::from_secs(2);
/// An answer that shows a clock further behind by no more says nothing new either: several API servers may answer by turns, and their clocks differ.
const APART: SignedDuration = SignedDuration::from_secs(10);
/// For how long one server's clock counts that is further ahead than those that answer now. Watches are begun anew, maybe at another server, after ten minutes
/// at most (`minRequestTimeout`, apiserver v1.36).
const HOLDS: Duration = Duration::from_secs(15 * 60);
/// By how much the time of the header is too early on average.
const CUT_OFF: SignedDuration = SignedDuration::from_millis(500);

/// By how much the API server's clock is ahead of CLOCK_BOOTTIME. That clock is never set, so a wall clock that is set moves no end. Of several servers' clocks
/// the one that is furthest ahead counts for flags, which end early rather than late, and the one that is furthest behind for pauses, which end late rather
/// than early. So no end moves back and forth.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerClock(Arc<watch::Sender<Option<Known>>>);

/// What is known of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// By how much the clock that is furthest ahead is ahead of CLOCK_BOOTTIME.
    first: Furthest,
    /// By how much CLOCK_BOOTTIME is ahead of the clock that is furthest behind.
    last: Furthest,
}

/// A clock that is further off than the others in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Furthest {
    off: SignedDuration,
    /// When an answer last showed it so (CLOCK_BOOTTIME). `None`: no answer did, and it is the machine's own wall clock.
    shown: Option<Duration>,
}

impl Furthest {
    /// What is known once an answer has shown this.
    fn after(known: Option<Self>, off: SignedDuration, now: Now) -> Self {
        let new = Self { off, shown: Some(now.boot) };
        let Some((before, shown)) = known.and_then(|known| Some((known, known.shown?))) else { return new };
        if off > before.off + SAME {
            new
        } else if off >= before.off - APART {
            Self { shown: Some(now.boot), ..before }
        } else if now.boot.saturating_sub(shown) < HOLDS {
            before
        } else {
            new
        }
    }
}

impl Known {
    /// What is known once an answer has shown a clock that is so far ahead.
    fn after(known: Option<Self>, ahead: SignedDuration, now: Now) -> Self {
        Self {
            first: Furthest::after(known.map(|known| known.first), ahead, now),
            last: Furthest::after(known.map(|known| known.last), -ahead, now),
        }
    }

    /// The machine's own wall clock, which is so far ahead.
    const fn own(ahead: SignedDuration, behind: SignedDuration) -> Self {
        Self { first: Furthest { off: ahead, shown: None }, last: Furthest { off: behind, shown: None } }
    }

    const fn time(self) -> ServerTime {
        ServerTime { first: self.first.off, last: self.last.off }
    }
}

impl ServerClock {
    /// Notes the time of an answer that has just come.
    pub(crate) fn note(&self, headers: &HeaderMap, now: Now) {
        let Some(shown) = shown(headers) else { return };
        let ahead = ahead(shown, now) + CUT_OFF;
        self.0.send_if_modified(|known| {
            let before = known.map(Known::time);
            let after = Known::after(*known, ahead, now);
            *known = Some(after);
            before != Some(after.time())
        });
    }

    /// A receiver that learns when the clock is another.
    pub(super) fn changes(&self) -> watch::Receiver<Option<Known>> {
        self.0.subscribe()
    }

    /// The clock as it is known now. Without any answer that had a date, the own wall clock counts as it shows now.
    pub(super) fn read(&self, now: Now) -> ServerTime {
        let ahead = ahead(now.wall, now);
        let mut time = Known::own(ahead, -ahead).time();
        self.0.send_if_modified(|known| {
            let is_unknown = known.is_none();
            time = known.get_or_insert(Known::own(ahead, -ahead)).time();
            is_unknown
        });
        time
    }

    /// The time that the clock furthest ahead shows now. `None` until an answer had a date.
    pub(crate) fn shows(&self, now: Now) -> Option<Timestamp> {
        let first = self.0.borrow().map(|known| known.first).filter(|first| first.shown.is_some())?;
        Self::shown_by(first.off, now)
    }

    /// The time that the clock furthest behind shows now, for what cannot be taken back. `None` until an answer had a date.
    pub(crate) fn shows_at_least(&self, now: Now) -> Option<Timestamp> {
        let last = self.0.borrow().map(|known| known.last).filter(|last| last.shown.is_some())?;
        Self::shown_by(-last.off, now)
    }

    /// The time that a clock shows now which is so far ahead of CLOCK_BOOTTIME.
    fn shown_by(ahead: SignedDuration, now: Now) -> Option<Timestamp> {
        let boot = SignedDuration::try_from(now.boot).ok()?;
        Timestamp::from_duration(ahead.checked_add(boot)?).ok()
    }
}

/// The API server's clock as it was known at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerTime {
    /// See [`Known`].
    first: SignedDuration,
    last: SignedDuration,
}

impl ServerTime {
    /// When the first API server's clock shows this time, by CLOCK_BOOTTIME; zero where that was before the boot.
    pub(super) fn first_shows(self, at: Timestamp) -> Duration {
        Duration::try_from(at.as_duration() - self.first).unwrap_or(Duration::ZERO)
    }

    /// When the last API server's clock shows this time, by CLOCK_BOOTTIME; zero where that was before the boot.
    pub(super) fn last_shows(self, at: Timestamp) -> Duration {
        Duration::try_from(at.as_duration() + self.last).unwrap_or(Duration::ZERO)
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
        let ends = clock.read(at(1_000)).first_shows(noon() + SignedDuration::from_mins(10));
        assert_eq!(ends, Duration::from_millis(1_599_500));
        // The wall clock is set meanwhile: nothing moves.
        let set = Now { wall: noon(), ..at(1_100) };
        assert_eq!(clock.read(set).first_shows(noon() + SignedDuration::from_mins(10)), ends);
        assert_eq!(clock.read(at(1_000)).first_shows(noon() - SignedDuration::from_mins(17)), Duration::ZERO);
    }

    #[test]
    fn without_a_date_the_own_clock_counts() {
        let clock = ServerClock::default();
        clock.note(&headers("today"), at(1_000));
        let ends = clock.read(at(1_000)).first_shows(noon());
        assert_eq!(ends, Duration::from_secs(1_000 + 3_600));
    }

    /// A clock that was noted at each of these boot times, with the date of each; whether each was news, and when a flag ends then that ends at noon, by
    /// CLOCK_BOOTTIME.
    fn noted(dates: &[(u64, &str)]) -> Vec<(bool, u64)> {
        let clock = ServerClock::default();
        let mut changes = clock.changes();
        let mut one = |(boot, date): &(u64, &str)| {
            clock.note(&headers(&format!("Sat, 28 Nov 2026 {date} GMT")), at(*boot));
            let is_news = changes.has_changed().expect("it lives");
            changes.mark_unchanged();
            (is_news, clock.read(at(*boot)).first_shows(noon()).as_millis() as u64)
        };
        dates.iter().map(&mut one).collect()
    }

    #[test]
    fn servers_whose_clocks_differ_move_no_end_back_and_forth() {
        let news = noted(&[
            (1_000, "12:00:00"),
            (1_010, "12:00:12"),
            // Another server is five seconds ahead, and the first one answers again.
            (1_020, "12:00:25"),
            (1_030, "12:00:30"),
            (1_040, "12:00:45"),
            // A third one is half a minute behind.
            (1_050, "12:00:20"),
            (1_060, "12:01:05"),
        ]);
        let (first, second) = (999_500, 994_500);
        assert_eq!(
            news,
            [
                (true, first),
                (false, first),
                (true, second),
                (false, second),
                (false, second),
                // Pauses last longer.
                (true, second),
                (false, second)
            ]
        );
    }

    #[test]
    fn of_clocks_that_differ_pauses_end_by_the_last_and_flags_by_the_first() {
        let clock = ServerClock::default();
        for date in ["12:00:00", "12:20:00", "12:00:00"] {
            clock.note(&headers(&format!("Sat, 28 Nov 2026 {date} GMT")), at(1_000));
        }
        let time = clock.read(at(1_000));
        let until = noon() + SignedDuration::from_mins(30);
        assert_eq!(time.first_shows(until), Duration::from_millis(1_599_500));
        assert_eq!(time.last_shows(until), Duration::from_millis(2_799_500));
        let half = SignedDuration::from_millis(500);
        assert_eq!(clock.shows(at(1_000)), Some(noon() + SignedDuration::from_mins(20) + half));
        assert_eq!(clock.shows_at_least(at(1_000)), Some(noon() + half));
    }

    #[test]
    fn a_clock_that_was_set_back_counts_once_no_answer_shows_the_old_one_any_more() {
        let holds = HOLDS.as_secs();
        let news = noted(&[(1_000, "12:00:00"), (1_010, "11:00:10"), (1_000 + holds, "11:15:00")]);
        assert_eq!(news, [(true, 999_500), (true, 999_500), (true, 1_000_000 + 3_600_000 - 500)]);
    }

    #[test]
    fn the_first_answer_counts_whatever_the_own_clock_shows() {
        let clock = ServerClock::default();
        assert_eq!(clock.shows(at(1_000)), None);
        clock.read(Now { wall: noon() + SignedDuration::from_hours(5), ..at(1_000) });
        assert_eq!(clock.shows(at(1_000)), None);
        clock.note(&headers(NOON), at(1_000));
        assert_eq!(clock.read(at(1_000)).first_shows(noon()), Duration::from_millis(999_500));
        let later = noon() + SignedDuration::from_millis(60_500);
        assert_eq!(clock.shows(at(1_060)), Some(later));
    }
}
