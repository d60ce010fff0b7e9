//! When to look for a result with a promised time, and what a look proves.

use std::time::Duration;

/// A thread that runs more than this later than it asked for was delayed: by the host, or by a kernel that did not release the processor.
pub(super) const LATE: Duration = Duration::from_millis(10);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The looks for one result. A look takes time, and the moment in that time at which it found the result is unknown. So the time of a look is the time of its
/// beginning. All times count from the same beginning.
#[derive(Debug)]
pub(super) struct Looks {
    promised: Duration,
    /// The duration of the longest look so far.
    longest: Duration,
    /// Whether a look that began when the time was over did not find the result.
    late: bool,
}

impl Looks {
    pub(super) fn new(promised: Duration) -> Self {
        Self { promised, longest: Duration::ZERO, late: false }
    }

    /// Whether the result was in time. The first look that found it began at `began`, and the machine had stood still for `still` by then.
    pub(super) fn in_time(&self, began: Duration, still: Duration) -> bool {
        !self.late && began <= self.promised + still + LATE
    }

    /// Records a look that did not find the result. Returns the pause before the next look. If another look could not end before the time is over, the next
    /// look begins exactly when the time is over, and that look decides.
    pub(super) fn not_yet(&mut self, began: Duration, ended: Duration, still: Duration) -> Duration {
        let due = self.promised + still;
        self.late |= began >= due;
        self.longest = self.longest.max(ended.saturating_sub(began));
        let left = due.saturating_sub(ended);
        // Half of the longest look is added, since looks differ in length.
        let next = PAUSE + self.longest * 3 / 2;
        if left.is_zero() || left > next { PAUSE } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISED: Duration = Duration::from_secs(3);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Whether a result that exists from `done` on counts as in time, and when the look that found it began. A look takes `look`, and sees the state at its
    /// middle.
    fn judged(done: Duration, look: Duration, still: Duration) -> (bool, Duration) {
        let mut looks = Looks::new(PROMISED);
        let mut now = Duration::ZERO;
        loop {
            let began = now;
            if began + look / 2 >= done {
                return (looks.in_time(began, still), began);
            }
            now += look;
            now += looks.not_yet(began, now, still);
        }
    }

    #[test]
    fn what_is_done_in_time_is_so_however_long_a_look_takes() {
        for look in [0, 1, 7, 90, 400, 1_900] {
            for done in [0, 100, 1_500, 2_600, 2_900, 2_990, 2_999, 3_000] {
                let (in_time, began) = judged(ms(done), ms(look), Duration::ZERO);
                assert!(in_time && began <= PROMISED, "done after {done} ms, looks of {look} ms: {began:?}");
            }
        }
    }

    #[test]
    fn what_is_done_later_than_a_look_takes_is_late() {
        for look in [0, 1, 7, 90, 400, 1_900] {
            for done in [1, 50, 700].map(|more| PROMISED + ms(look / 2 + more)) {
                let (in_time, began) = judged(done, ms(look), Duration::ZERO);
                assert!(!in_time, "done after {done:?}, looks of {look} ms: {began:?}");
            }
        }
    }

    #[test]
    fn the_time_is_longer_by_what_stood_still() {
        assert!(judged(ms(3_190), ms(90), ms(200)).0);
        assert!(!judged(ms(3_290), ms(90), ms(200)).0);
    }

    /// The look before the last one took longer than any other.
    #[test]
    fn what_nobody_looked_for_in_time_is_late() {
        let mut looks = Looks::new(PROMISED);
        let pause = looks.not_yet(ms(0), ms(1), Duration::ZERO);
        assert_eq!(pause, PAUSE);
        looks.not_yet(ms(2_900), ms(3_400), Duration::ZERO);
        assert!(!looks.in_time(ms(3_405), Duration::ZERO));
    }
}
