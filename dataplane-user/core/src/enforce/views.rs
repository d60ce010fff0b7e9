//! The view whose tables lie in the maps, and those that were taken since.

use std::sync::Arc;

use super::{now::Epoch, view::NewView};
use crate::plan::Slot;

/// Of how many views backends may lie in the maps at once, beside the one that was written last. Where that many writes failed, the
/// last one is tried until it succeeds, and the next view waits.
const HANDED: usize = 4;

/// How far the tables of the latest view are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// They are to be handed out.
    Due,
    /// They are being written.
    Out,
    /// They could not be written, and are to be handed out again at this time (CLOCK_MONOTONIC, ns).
    Failed(u64),
    /// They lie in the maps.
    Written,
}

/// The latest view, and what the maps may hold of it and of earlier ones.
#[derive(Debug)]
pub(super) struct Views {
    latest: Option<Arc<NewView>>,
    /// The last view whose tables, and no others, were in the maps.
    written: Option<Epoch>,
    /// Views whose tables were handed out since then. A part of each may lie in the maps.
    handed: Vec<Epoch>,
    step: Step,
    /// Whether a write failed since then: what lies in the maps is not known.
    unsure: bool,
    /// The view to take once no tables are being written.
    next: Option<Arc<NewView>>,
    pub(super) error: Option<Arc<str>>,
}

impl Default for Views {
    fn default() -> Self {
        Self {
            latest: None,
            written: None,
            handed: Vec::new(),
            step: Step::Written,
            // What an earlier agent left in the maps is not known either.
            unsure: true,
            next: None,
            error: None,
        }
    }
}

impl Views {
    /// The view that was taken last.
    pub(super) fn latest(&self) -> Option<&Arc<NewView>> {
        self.latest.as_ref()
    }

    /// The place of a node of the latest view.
    pub(super) fn slot(&self, name: &str) -> Option<Slot> {
        Some(self.latest.as_ref()?.members.get(name)?.slot)
    }

    /// The view whose tables were written last.
    pub(super) fn written(&self) -> Option<Epoch> {
        self.written
    }

    /// Whether the view that came last is the one whose tables lie in the maps.
    pub(super) fn is_written(&self) -> bool {
        self.next.is_none() && self.step == Step::Written && self.latest.is_some()
    }

    /// Whether the view that came last was taken.
    pub(super) fn is_taken(&self) -> bool {
        self.next.is_none() && self.latest.is_some()
    }

    /// Whether the tables in the maps are of this view or a later one.
    pub(super) fn written_since(&self, epoch: Epoch) -> bool {
        self.written.is_some_and(|written| written >= epoch)
    }

    /// Whether a view can be taken now; otherwise it waits.
    pub(super) fn offer(&mut self, view: Arc<NewView>) -> Option<Arc<NewView>> {
        if self.latest.as_ref().is_some_and(|latest| latest.epoch >= view.epoch) {
            return None;
        }
        self.next = Some(match self.next.take() {
            Some(skipped) => view.in_place_of(&skipped),
            None => view,
        });
        self.next()
    }

    /// The waiting view, if it can be taken now.
    pub(super) fn next(&mut self) -> Option<Arc<NewView>> {
        let takes = match self.step {
            Step::Out => false,
            Step::Failed(_) => self.handed.len() < HANDED,
            Step::Due => {
                self.handed.last() != self.latest.as_ref().map(|view| &view.epoch)
                    || self.handed.len() < HANDED
            }
            Step::Written => true,
        };
        if takes { self.next.take() } else { None }
    }

    /// Takes a view. Returns the one before, and whether nothing of that one came into the maps.
    pub(super) fn take(&mut self, view: Arc<NewView>) -> (Option<Arc<NewView>>, bool) {
        let before = self.latest.replace(view);
        let epoch = before.as_ref().map(|view| view.epoch);
        let never = self.step == Step::Due && self.handed.last() != epoch.as_ref() && self.written != epoch;
        self.step = Step::Due;
        (before, never)
    }

    /// Whether the tables are to be handed out.
    pub(super) fn is_due(&self) -> bool {
        self.step == Step::Due
    }

    /// Hands the tables out. Returns the view, and the view whose tables the maps hold, where that is known.
    pub(super) fn hand_out(&mut self) -> Option<(Arc<NewView>, Option<Epoch>)> {
        let view = self.latest.clone()?;
        self.step = Step::Out;
        if self.handed.last() != Some(&view.epoch) {
            self.handed.push(view.epoch);
        }
        let base = self.written.filter(|_| !self.unsure);
        Some((view, base))
    }

    /// The tables of this view were written. Whether they are those that were handed out.
    pub(super) fn succeeded(&mut self, epoch: Epoch) -> bool {
        if self.step != Step::Out || self.latest.as_ref().is_none_or(|view| view.epoch != epoch) {
            return false;
        }
        self.step = Step::Written;
        self.written = Some(epoch);
        self.handed.clear();
        self.unsure = false;
        self.error = None;
        true
    }

    /// The tables of this view could not be written. Whether they are those that were handed out.
    pub(super) fn failed(&mut self, epoch: Epoch, error: Arc<str>, again: u64) -> bool {
        if self.step != Step::Out || self.latest.as_ref().is_none_or(|view| view.epoch != epoch) {
            return false;
        }
        self.step = Step::Failed(again);
        self.unsure = true;
        self.error = Some(error);
        true
    }

    /// Has failed tables handed out again once they are due.
    pub(super) fn try_again(&mut self, now: u64) {
        if matches!(self.step, Step::Failed(again) if again <= now) {
            self.step = Step::Due;
        }
    }

    /// When failed tables are due again (CLOCK_MONOTONIC, ns).
    pub(super) fn next_try(&self) -> Option<u64> {
        match self.step {
            Step::Failed(again) => Some(again),
            Step::Due | Step::Out | Step::Written => None,
        }
    }
}
