//! State that changes each second. It is beside [`super::world::World`], never in it, so that nobody is woken by a change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nodefence_common::VERDICT_LIFETIME_NS;

/// A few numbers that the threads `verdicts` and `drain` write for everybody. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug)]
pub(super) struct Beat {
    renewed: AtomicU64,
    lives: AtomicU64,
    lines_lost: AtomicU64,
    done: AtomicU64,
    tables: AtomicU64,
    confirmed: AtomicU64,
    drain: AtomicU64,
    drains: AtomicBool,
}

/// Whether `verdicts` has given no sign of life for so long that verdicts have lapsed: then a new agent is better. Times are CLOCK_MONOTONIC, in ns.
pub(super) const fn hangs(now: u64, lives: u64) -> bool {
    now.saturating_sub(lives) > VERDICT_LIFETIME_NS
}

impl Beat {
    /// The state of an agent that starts.
    pub(super) fn new(now: u64) -> Self {
        Self {
            renewed: AtomicU64::new(now),
            lives: AtomicU64::new(now),
            lines_lost: AtomicU64::new(0),
            done: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            drain: AtomicU64::new(0),
            drains: AtomicBool::new(false),
        }
    }

    /// When all verdicts that are to hold were last renewed without a failure. For `status`.
    pub(super) fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// All verdicts were renewed, by a pass that began at `begun`.
    pub(super) fn renew(&self, begun: u64) {
        self.renewed.store(begun, Ordering::Relaxed);
    }

    /// When `verdicts` last did something, or looked whether there is something to do. It does so each second. For the watchdog.
    pub(super) fn lives(&self) -> u64 {
        self.lives.load(Ordering::Relaxed)
    }

    /// `verdicts` gives a sign of life.
    pub(super) fn live(&self, now: u64) {
        self.lives.store(now, Ordering::Relaxed);
    }

    /// How many log lines of `verdicts` were lost: more came than could be put into words.
    pub(super) fn lines_lost(&self) -> usize {
        usize::try_from(self.lines_lost.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// One more line was lost.
    pub(super) fn lose_line(&self) {
        self.lines_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the latest snapshot that is in the maps as a whole. A node that a later snapshot calls enforced may not be cut yet.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// All of this snapshot is in the maps.
    pub(super) fn set_done(&self, number: u64) {
        self.done.store(number, Ordering::Release);
    }

    /// The number of the last view whose tables, and no others, were in the maps; 0 before the first one.
    pub(super) fn tables(&self) -> u64 {
        self.tables.load(Ordering::Acquire)
    }

    /// The tables of this view, and no others, are in the maps.
    pub(super) fn set_tables(&self, view: u64) {
        self.tables.store(view, Ordering::Release);
    }

    /// When the source last confirmed its view without giving another; 0 where it never did. The confirmed view is in the snapshot by
    /// then. So a reader of both must read this time before the snapshot.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// The source confirmed its view.
    pub(super) fn set_confirmed(&self, at: u64) {
        self.confirmed.store(at, Ordering::Release);
    }

    /// When `drain` last gave a sign of life; 0 before its first one.
    pub(super) fn drain(&self) -> u64 {
        self.drain.load(Ordering::Relaxed)
    }

    /// Whether `drain` has the ledger open. Then a lease that has lapsed must not be renewed.
    pub(super) fn drains(&self) -> bool {
        self.drains.load(Ordering::SeqCst)
    }

    /// `drain` is about to open the ledger, or has closed it.
    pub(super) fn set_drains(&self, drains: bool) {
        self.drains.store(drains, Ordering::SeqCst);
    }

    /// `drain` gives a sign of life.
    pub(super) fn drain_lives(&self, now: u64) {
        self.drain.store(now, Ordering::Relaxed);
    }
}
