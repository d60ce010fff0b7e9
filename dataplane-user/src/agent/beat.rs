//! What changes each second: beside [`super::world::World`], never in it, so that nobody is woken for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A few words that the owner of verdicts and the thread that drains from IPVS tell everybody. Times are CLOCK_MONOTONIC, in ns.
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

impl Beat {
    /// An agent that starts.
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

    /// When all verdicts that are to hold were last renewed, without a failure: for `status`.
    pub(super) fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// All verdicts were renewed, by a pass that began at `begun`.
    pub(super) fn renew(&self, begun: u64) {
        self.renewed.store(begun, Ordering::Relaxed);
    }

    /// When the owner of verdicts last did something, or looked whether there is something to do, which it does each second: for the watchdog.
    pub(super) fn lives(&self) -> u64 {
        self.lives.load(Ordering::Relaxed)
    }

    /// It does so now.
    pub(super) fn live(&self, now: u64) {
        self.lives.store(now, Ordering::Relaxed);
    }

    /// How many of its lines for the log were lost: more came than could be put into words.
    pub(super) fn lines_lost(&self) -> usize {
        usize::try_from(self.lines_lost.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// One more was.
    pub(super) fn lose_line(&self) {
        self.lines_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the latest snapshot of which all is in the maps: before, one that is enforced by the snapshot may be about to be.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// All of this snapshot is in the maps.
    pub(super) fn set_done(&self, number: u64) {
        self.done.store(number, Ordering::Release);
    }

    /// The number of the view whose tables, and no others, were in the maps last; 0 before the first one.
    pub(super) fn tables(&self) -> u64 {
        self.tables.load(Ordering::Acquire)
    }

    /// The tables of this view, and no others, are in the maps.
    pub(super) fn set_tables(&self, view: u64) {
        self.tables.store(view, Ordering::Release);
    }

    /// When the source last said that its view is as it is, without another view; 0 where it never did. It is of a view that is in the snapshot by then: whoever
    /// holds one against the other reads this first.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// It said so.
    pub(super) fn set_confirmed(&self, at: u64) {
        self.confirmed.store(at, Ordering::Release);
    }

    /// When the thread that drains from IPVS last gave a sign of life; 0 before its first one.
    pub(super) fn drain(&self) -> u64 {
        self.drain.load(Ordering::Relaxed)
    }

    /// Whether it has the ledger open: then a lease that has lapsed must not be renewed.
    pub(super) fn drains(&self) -> bool {
        self.drains.load(Ordering::SeqCst)
    }

    /// It is about to open the ledger, or has closed it.
    pub(super) fn set_drains(&self, drains: bool) {
        self.drains.store(drains, Ordering::SeqCst);
    }

    /// It gives one.
    pub(super) fn drain_lives(&self, now: u64) {
        self.drain.store(now, Ordering::Relaxed);
    }
}
