//! Requests that wait for an answer, and what is to be saved.

use std::sync::Arc;

use super::{
    changes::Changes,
    claim::{Claim, ClaimSource},
    now::{SECOND, Ticket},
    output::SaveState,
};
use crate::cluster::NodeName;

/// What a request changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A claim was raised. `before`: the claim that it replaced. `raised`: the claim as it is held; `None` where it was over at once.
    Raise { source: ClaimSource, before: Option<Box<Claim>>, raised: Option<Box<Claim>> },
    /// A claim was taken back, if there was one.
    Withdraw { was: bool },
    /// Another agent takes over.
    HandOver,
}

/// A request that waits for an answer.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) node: NodeName,
    pub(super) wish: Wish,
    /// Whether nothing is to be written to the maps for the request any more.
    pub(super) settled: bool,
    /// When (CLOCK_MONOTONIC, ns) the map held the change.
    pub(super) written: Option<u64>,
    /// The number of the save that the request waits for.
    pub(super) serial: u64,
    /// When (CLOCK_MONOTONIC, ns) the request is answered at the latest, whatever it waits for.
    pub(super) by: u64,
}

/// Requests, and the saving of claims.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) waiting: Vec<Pending>,
    /// The save that was handed out and is not known to be done.
    out: Option<u64>,
    /// When (CLOCK_MONOTONIC, ns) a save was handed out last.
    handed: u64,
    /// The last save that is done.
    done: u64,
    /// The save that failed last, and why.
    failed: Option<(u64, Arc<str>)>,
    /// When (CLOCK_MONOTONIC, ns) the failed save is tried again.
    again: Option<u64>,
    /// How many agents that still run were given the saved state: while there is one, nothing is saved any more.
    given: u32,
}

impl Requests {
    /// Whether the state is to be saved now. Where it is, it counts as handed out.
    pub(super) fn save(&mut self, changes: Changes, now: u64) -> bool {
        let tried = self.failed.as_ref().map_or(self.done, |(failed, _)| *failed);
        // An urgent change is tried at once, whatever became of older ones.
        let due = changes.urgent > tried && self.is_unsaved(changes);
        let due = due || self.next_save(changes).is_some_and(|at| at <= now);
        if due {
            self.out = Some(changes.all);
            self.handed = now;
        }
        due
    }

    fn is_unsaved(&self, changes: Changes) -> bool {
        self.out.is_none() && self.is_behind(changes)
    }

    /// Whether there are changes that were not handed out to be saved.
    pub(super) fn is_behind(&self, changes: Changes) -> bool {
        !self.is_given() && changes.all > self.out.unwrap_or(self.done)
    }

    /// When the next save is due that is not urgent or failed before (CLOCK_MONOTONIC, ns). Each save makes the disk write, so renewals are saved once a second at most.
    pub(super) fn next_save(&self, changes: Changes) -> Option<u64> {
        let at = self.handed.saturating_add(SECOND).max(self.again.unwrap_or_default());
        self.is_unsaved(changes).then_some(at)
    }

    /// Takes the result of a save. Whether a failure is news.
    pub(super) fn saved(&mut self, serial: u64, result: Result<(), Arc<str>>, now: u64) -> bool {
        if self.out != Some(serial) {
            return false;
        }
        self.out = None;
        match result {
            Ok(()) => {
                self.done = serial;
                self.failed = None;
                false
            }
            Err(error) => {
                let news = self.failed.as_ref().is_none_or(|(_, before)| *before != error);
                self.failed = Some((serial, error));
                self.again = Some(now.saturating_add(SECOND));
                news
            }
        }
    }

    /// Has a failed save tried again once it is due.
    pub(super) fn save_again(&mut self, now: u64) {
        self.again = self.again.filter(|again| *again > now);
    }

    /// The saved state is another agent's from now on.
    pub(super) fn give(&mut self) {
        self.given += 1;
    }

    /// One of the agents that were given the saved state has gone.
    pub(super) fn take_back(&mut self) {
        self.given = self.given.saturating_sub(1);
    }

    /// Whether the saved state is another agent's.
    pub(super) fn is_given(&self) -> bool {
        self.given > 0
    }

    /// What became of this save; `None` while it goes on.
    pub(super) fn state(&self, serial: u64) -> Option<SaveState> {
        if self.done >= serial {
            return Some(SaveState::Saved);
        }
        let failed = self.failed.as_ref().filter(|(failed, _)| *failed >= serial);
        failed.map(|(_, error)| SaveState::Failed(Arc::clone(error)))
    }

    /// Why the claims are not saved.
    pub(super) fn error(&self) -> Option<Arc<str>> {
        self.failed.as_ref().map(|(_, error)| Arc::clone(error))
    }

    /// When something must be answered or tried again (CLOCK_MONOTONIC, ns).
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let answers = self.waiting.iter().map(|pending| pending.by).filter(|by| *by < u64::MAX);
        answers.chain(self.again).min()
    }
}
