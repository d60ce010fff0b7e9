//! Progress on the terminal: a line each second, with a mark for each 100 ms.

use std::{
    io::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::request::End;

/// Counts since they were last read.
#[derive(Default, Debug)]
pub(crate) struct Live {
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// Requests that have no outcome yet.
    waiting: AtomicU64,
}

/// Counts of one bucket.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
}

impl Live {
    /// Counts a request that begins.
    pub(crate) fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests that wait for an outcome now. A served request waits for a fraction of a millisecond.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Uncounts a begun request that turned out to be only a reconnect.
    pub(crate) fn cancel(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts the end of a request that was begun.
    pub(crate) fn end(&self, how: End) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let counter = match how {
            End::Answered => &self.answered,
            End::Reset | End::Refused => &self.refused,
            End::GaveUp | End::Waiting | End::Other => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts since the last call.
    pub(crate) fn take(&self) -> Counts {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Counts { answered: take(&self.answered), refused: take(&self.refused), failed: take(&self.failed) }
    }
}

/// Prints the heading of the lines.
pub(crate) fn head() {
    println!("  a mark for each 100 ms, then the sum of the second; requests that wait at its end");
    println!("  second   answered           reset or refused   gave up after 2 s   waiting");
}

/// Prints the line of one second, with ten marks for each outcome.
pub(crate) fn line(second: i64, cells: &[Counts], usual: u64, waiting: u64) {
    let strip = |count: fn(&Counts) -> u64, full: u64| -> String {
        let mut text: String = cells.iter().map(|cell| bar(count(cell), full)).collect();
        text.extend(std::iter::repeat_n(' ', 10_usize.saturating_sub(cells.len())));
        text
    };
    let sum = |count: fn(&Counts) -> u64| cells.iter().map(count).sum::<u64>();
    let answered = |cell: &Counts| cell.answered;
    let refused = |cell: &Counts| cell.refused;
    let failed = |cell: &Counts| cell.failed;
    println!(
        "  {second:>+4} s   {} {:>5}   {} {:>5}   {} {:>5}    {waiting:>7}",
        strip(answered, usual),
        sum(answered),
        strip(refused, 12),
        sum(refused),
        strip(failed, 12),
        sum(failed)
    );
    let _ = std::io::stdout().flush();
}

fn bar(value: u64, full: u64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if value == 0 {
        return '·';
    }
    let at = (value.saturating_mul(8)).div_ceil(full.max(1)).clamp(1, 8);
    BARS[usize::try_from(at).unwrap_or(8) - 1]
}
