//! Requests that wait for an answer, and what is to be saved.

use std::sync::Arc;

use super::{
    changes::Changes,
    claim::{Claim, Source},
    now::{SECOND, Ticket},
    output::SaveState,
};
use crate::cluster::NodeName;

/// What a request changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A claim was raised in place of another. `raised`: as it is held; `None` where it was over at once.
    Raise { source: Source, before: Option<Claim>, raised: Option<Box<Claim>> },
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
    /// Nothing is to be written for it any more.
    pub(super) settled: bool,
    /// When (CLOCK_MONOTONIC, ns) the map held it.
    pub(super) written: Option<u64>,
    /// What must be saved for it.
    pub(super) serial: u64,
    /// It is answered then (CLOCK_MONOTONIC, ns), whatever it waits for.
    pub(super) by: u64,
}

/// Requests, and the saving of claims.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) waiting: Vec<Pending>,
    /// What was handed out to be saved, and is not known to be.
    out: Option<u64>,
    /// When (CLOCK_MONOTONIC, ns) something was handed out last.
    handed: u64,
    /// What is saved.
    done: u64,
    /// What could not be saved last, and why.
    failed: Option<(u64, Arc<str>)>,
    /// It is tried again then (CLOCK_MONOTONIC, ns).
    again: Option<u64>,
    /// To so many agents what was saved was given that nobody said had gone: nothing is saved any more.
    given: u32,
}

impl Requests {
    /// Whether all of this is to be saved now. It is handed out then.
    pub(super) fn save(&mut self, changes: Changes, now: u64) -> bool {
        let tried = self.failed.as_ref().map_or(self.done, |(failed, _)| *failed);
        // What is urgent is tried at once, whatever became of what is older.
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

    /// Whether there is more than was handed out, also where that is not known to be saved.
    pub(super) fn is_behind(&self, changes: Changes) -> bool {
        !self.is_given() && changes.all > self.out.unwrap_or(self.done)
    }

    /// When what is not urgent, or failed, is to be saved (CLOCK_MONOTONIC, ns): each makes the disk write, so that renewals are saved once a second at most.
    pub(super) fn next_save(&self, changes: Changes) -> Option<u64> {
        let at = self.handed.saturating_add(SECOND).max(self.again.unwrap_or_default());
        self.is_unsaved(changes).then_some(at)
    }

    /// What became of it. Whether a failure is news.
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

    /// Has it saved again once it is time.
    pub(super) fn save_again(&mut self, now: u64) {
        self.again = self.again.filter(|again| *again > now);
    }

    /// What was saved is another agent's from now on.
    pub(super) fn give(&mut self) {
        self.given += 1;
    }

    /// One of those to whom it was given has gone.
    pub(super) fn take_back(&mut self) {
        self.given = self.given.saturating_sub(1);
    }

    /// Whether it is.
    pub(super) fn is_given(&self) -> bool {
        self.given > 0
    }

    /// How far the saving of this is; `None` while it goes on.
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
