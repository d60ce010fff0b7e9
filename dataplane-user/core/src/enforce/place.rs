//! A place in the `nodes` map: what lies there, and what is to lie there.

use std::{sync::Arc, time::Duration};

use nodefence_common::{Action, NodeEntry, Verdict};

use super::{
    decision::Decision,
    now::{Epoch, SECOND},
    settings::EnforcerSettings,
};
use crate::{
    cluster::{Backend, NodeName},
    plan::{Mode, Policy, Slot, node_entry, verdict_until},
};

/// What must be done about a place, in this order over all places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// Write the place healthy, with the generation of its new owner.
    Place,
    /// Take its verdict back, or make it one that does not cut.
    Release,
    /// Give it a verdict that it does not bear.
    Flag,
    /// Write its verdict again.
    Renew,
    /// Write the place as unused.
    Vacate,
}

/// Whose place it is.
#[derive(Clone, Debug)]
pub(super) struct PlaceOwner {
    pub(super) name: NodeName,
    pub(super) slot: Slot,
    /// The view with which the owner came.
    pub(super) since: Epoch,
}

/// Why a place does not bear the verdict that it should.
#[derive(Clone, Debug)]
pub(super) struct Blocked {
    /// When (CLOCK_MONOTONIC, ns) the verdict is tried again.
    pub(super) until: u64,
    /// The port that must be exempt.
    pub(super) port: Backend,
    /// Why it could not be.
    pub(super) why: Arc<str>,
}

/// What a write replaces, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    entry: NodeEntry,
    may_cut: Option<u64>,
}

/// A place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    index: u32,
    pub(super) owner: Option<PlaceOwner>,
    /// The entry that was written last, or found.
    pub(super) entry: NodeEntry,
    /// Whether the entry is as wanted, and nobody said that its write failed.
    pub(super) clean: bool,
    /// Up to when (CLOCK_MONOTONIC, ns) the map may hold a verdict that cuts.
    pub(super) may_cut: Option<u64>,
    pub(super) want: Option<Decision>,
    /// When a failed write is tried again (CLOCK_MONOTONIC, ns).
    pub(super) again: Option<u64>,
    /// Why the write failed.
    pub(super) error: Option<Arc<str>>,
    /// The exemption that the verdict needs and that could not be written.
    pub(super) blocked: Option<Blocked>,
    /// Since when the place bears a verdict without a break.
    pub(super) since: u64,
    /// Rounds that challenge the node's clients count if they began at this time or later.
    pub(super) challenge_since: u64,
    /// Whether tables without the former owner are written.
    pub(super) vacant: bool,
    /// The work for which the place is listed.
    pub(super) listed: Option<Work>,
}

/// Whether an entry cuts, until it lapses. A number from another version may mean anything, and counts as cutting.
pub(super) fn cuts(entry: &NodeEntry) -> bool {
    let spares = [Action::Observe, Action::Ignore].map(|action| action as u32);
    entry.verdict != Verdict::Healthy as u32 && !spares.contains(&entry.action)
}

impl Place {
    /// A place as its entry was found in the map.
    pub(super) fn found(index: u32, entry: NodeEntry, now: u64) -> Self {
        Self {
            index,
            owner: None,
            entry,
            clean: entry.verdict == Verdict::Healthy as u32,
            may_cut: (cuts(&entry) && entry.until > now).then_some(entry.until),
            want: None,
            again: None,
            error: None,
            blocked: None,
            since: now,
            challenge_since: now,
            vacant: false,
            listed: None,
        }
    }

    /// A place that was never used.
    pub(super) fn unused(index: u32, now: u64) -> Self {
        Self::found(index, NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] }, now)
    }

    /// The place with the generation that lies in the map.
    pub(super) fn slot(&self) -> Slot {
        Slot { index: self.index, generation: self.entry.generation }
    }

    /// Whether the map lacks its owner's generation.
    pub(super) fn is_unwritten(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.slot.generation != self.entry.generation)
    }

    /// Whether a verdict that cuts is wanted.
    pub(super) fn wants_cut(&self) -> bool {
        self.want.as_ref().is_some_and(|want| want.mode == Mode::Enforce)
    }

    /// Whether the entry says that the place has no owner.
    pub(super) fn is_empty(&self) -> bool {
        self.entry.name == [0; 28] && self.entry.verdict == Verdict::Healthy as u32
    }

    /// Sets the verdict that the place must bear.
    pub(super) fn want(&mut self, want: Option<Decision>, now: u64) {
        let mode = |want: &Option<Decision>| want.as_ref().map(|want| want.mode);
        if mode(&want) != mode(&self.want) {
            self.clean = false;
            // The failure of an earlier write says nothing about this one.
            self.again = None;
        }
        if let Some(want) = &want {
            let until = verdict_until(now, left(want, now));
            let sooner = want.ends.is_some_and(|ends| ends < self.entry.until);
            // The entry may have been written for a claim that was about to end, and the next renewal may come too late.
            let short = self.entry.until < until && self.entry.until < now + 2 * SECOND;
            self.clean &= !sooner && !short;
        }
        self.want = want;
    }

    /// The work that is due now.
    pub(super) fn work(&self, now: u64) -> Option<Work> {
        if self.again.is_some_and(|again| again > now) {
            return None;
        }
        if self.is_unwritten() {
            return Some(Work::Place);
        }
        if self.clean {
            return (self.owner.is_none() && self.vacant && !self.is_empty()).then_some(Work::Vacate);
        }
        Some(match (self.wants_cut(), self.may_cut.is_some(), &self.want) {
            (true, true, _) => Work::Renew,
            (true, false, _) | (false, false, Some(_)) => Work::Flag,
            (false, _, _) => Work::Release,
        })
    }

    /// The entry that this work writes.
    pub(super) fn entry_for(&self, work: Work, settings: &EnforcerSettings, now: u64) -> NodeEntry {
        let Some(owner) = &self.owner else {
            let healthy = NodeEntry { verdict: Verdict::Healthy as u32, action: 0, until: 0, ..self.entry };
            let unused = NodeEntry { name: [0; 28], ..healthy };
            return if work == Work::Vacate { unused } else { healthy };
        };
        let wanted = self.want.as_ref().filter(|_| work != Work::Place);
        let mode = wanted.map_or(Mode::Enforce, |want| want.mode);
        let policy = Policy { own_node: &settings.own, mode, answer: settings.answer };
        let until = wanted.map(|want| verdict_until(now, left(want, now)));
        node_entry(&owner.name, owner.slot, &policy, until)
    }

    /// Takes the entry as written. Returns what it replaced.
    pub(super) fn written(&mut self, entry: NodeEntry) -> Before {
        let before = Before { entry: self.entry, may_cut: self.may_cut };
        self.may_cut = cuts(&entry).then_some(entry.until);
        // The owner's generation is written healthy first, its verdict after that.
        self.clean = !self.is_unwritten() || self.want.is_none();
        self.entry = entry;
        self.again = None;
        before
    }

    /// Takes note that the write failed: either entry may lie in the map.
    pub(super) fn failed(&mut self, before: Before, again: u64, error: Arc<str>) {
        let tried = std::mem::replace(&mut self.entry, before.entry);
        let of = |entry: &NodeEntry| cuts(entry).then_some(entry.until);
        self.may_cut = before.may_cut.max(of(&tried));
        self.clean = false;
        self.again = Some(again);
        self.error = Some(error);
    }

    /// Takes note of an entry that was read in the map and is not as it should be. It may be old by now, so it proves nothing.
    pub(super) fn differs(&mut self, entry: &NodeEntry) {
        self.may_cut = self.may_cut.max(cuts(entry).then_some(entry.until));
        self.clean = false;
    }

    /// Takes note that a verdict has lapsed.
    pub(super) fn lapse(&mut self, now: u64) {
        self.may_cut = self.may_cut.filter(|until| *until > now);
    }
}

fn left(want: &Decision, now: u64) -> Option<Duration> {
    want.ends.map(|ends| Duration::from_nanos(ends.saturating_sub(now)))
}
