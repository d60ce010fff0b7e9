//! State that the threads that rescue share with the agent's other parts.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    conntrack::Flow,
    flags::monotonic_ns,
    report::RescueRow,
    rescue::{Fate, Moved, Tally, own::OwnFound},
};

/// State that the threads that rescue share with the agent's other parts.
#[derive(Debug, Default)]
pub(super) struct RescueState {
    /// The fates of packets.
    pub(super) tally: Tally,
    idle: Mutex<Option<String>>,
    own: Mutex<OwnFound>,
    /// Flows whose entries were deleted.
    moved: Mutex<Moved>,
    /// How many packets were refused at once for want of budget.
    beyond: AtomicU64,
}

impl RescueState {
    /// Why nothing is rescued; `None` where packets are.
    fn why_idle(&self) -> Option<String> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The findings on packets of this machine's own sockets.
    pub(super) fn own(&self) -> MutexGuard<'_, OwnFound> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether packets are taken. If so, no entry may be deleted that was not given to [`Self::remember`] before.
    pub(super) fn takes(&self) -> bool {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Remembers entries that are about to be deleted. Where there is no room for them, packets of these flows that are on their way are
    /// refused.
    pub(super) fn remember(&self, flows: &[Flow]) {
        let now = monotonic_ns();
        let mut moved = self.moved();
        flows.iter().for_each(|flow| moved.remember(flow, now));
    }

    pub(super) fn moved(&self) -> MutexGuard<'_, Moved> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many more packets were beyond the budget.
    pub(super) fn add_beyond(&self, packets: u64) {
        self.beyond.fetch_add(packets, Ordering::Relaxed);
    }

    /// For `status`.
    pub(super) fn row(&self) -> RescueRow {
        let own = self.own().row();
        let beyond_budget = self.beyond.load(Ordering::Relaxed);
        let mut row = RescueRow { idle: self.why_idle(), own, beyond_budget, ..RescueRow::default() };
        for (fate, counter) in self.tally.get() {
            match fate {
                Fate::Rescued => row.rescued = counter.packets,
                Fate::Tries => row.tries = counter.packets,
                other if counter.packets != 0 => {
                    row.not.insert(other.name().to_owned(), counter.packets);
                }
                _ => {}
            }
        }
        row
    }

    pub(super) fn set_idle(&self, why: Option<String>) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}
