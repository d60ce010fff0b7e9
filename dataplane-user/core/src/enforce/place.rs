//! A place in the `nodes` map: what lies there, and what is to.

use std::{sync::Arc, time::Duration};

use nodefence_common::{Action, NodeEntry, Verdict};

use super::{
    decision::Decision,
    now::{Epoch, SECOND},
    settings::Told,
};
use crate::{
    cluster::{Backend, NodeName},
    plan::{Mode, Policy, Slot, node_entry, verdict_until},
};

/// What must be done about a place, in this order over all places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// Written healthy with the generation of its new owner.
    Place,
    /// Its verdict taken back, or made one that does not cut.
    Release,
    /// A verdict given that it does not bear.
    Flag,
    /// Its verdict written again.
    Renew,
    /// Written as unused.
    Vacate,
}

/// Whose place it is.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) name: NodeName,
    pub(super) slot: Slot,
    /// With which view it came.
    pub(super) since: Epoch,
}

/// Why a place bears no verdict that it should.
#[derive(Clone, Debug)]
pub(super) struct Blocked {
    /// It is tried again then (CLOCK_MONOTONIC, ns).
    pub(super) until: u64,
    /// What must be exempt.
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
    pub(super) owner: Option<Owner>,
    /// What was written last, or found.
    pub(super) entry: NodeEntry,
    /// That is what is wanted, and nobody said that it was not written.
    pub(super) clean: bool,
    /// Up to when (CLOCK_MONOTONIC, ns) the map may hold a verdict that cuts.
    pub(super) may_cut: Option<u64>,
    pub(super) want: Option<Decision>,
    /// A write failed: it is tried again then.
    pub(super) again: Option<u64>,
    /// Why it failed.
    pub(super) error: Option<Arc<str>>,
    /// What must be exempt for its verdict could not be written.
    pub(super) blocked: Option<Blocked>,
    /// Since when it bears a verdict without a break.
    pub(super) since: u64,
    /// Since when a round that asks its clients counts.
    pub(super) challenge_since: u64,
    /// The tables that lack its former owner are written.
    pub(super) vacant: bool,
    /// As what it stands in the list of what is to be done.
    pub(super) listed: Option<Work>,
}

/// Whether an entry cuts, until it lapses. A number from another version may mean anything.
pub(super) fn cuts(entry: &NodeEntry) -> bool {
    let spares = [Action::Observe, Action::Ignore].map(|action| action as u32);
    entry.verdict != Verdict::Healthy as u32 && !spares.contains(&entry.action)
}

impl Place {
    /// As it was found.
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

    /// One that was never used.
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

    /// Whether its entry says that nobody has it.
    pub(super) fn is_empty(&self) -> bool {
        self.entry.name == [0; 28] && self.entry.verdict == Verdict::Healthy as u32
    }

    /// From now on this is wanted.
    pub(super) fn want(&mut self, want: Option<Decision>, now: u64) {
        let mode = |want: &Option<Decision>| want.as_ref().map(|want| want.mode);
        if mode(&want) != mode(&self.want) {
            self.clean = false;
            // That another write failed says nothing about this one.
            self.again = None;
        }
        if let Some(want) = &want {
            let until = verdict_until(now, left(want, now));
            let sooner = want.ends.is_some_and(|ends| ends < self.entry.until);
            // It may have been written for a claim that was about to end, and the next renewal may come too late.
            let short = self.entry.until < until && self.entry.until < now + 2 * SECOND;
            self.clean &= !sooner && !short;
        }
        self.want = want;
    }

    /// What must be done now.
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
    pub(super) fn entry_for(&self, work: Work, told: &Told, now: u64) -> NodeEntry {
        let Some(owner) = &self.owner else {
            let healthy = NodeEntry { verdict: Verdict::Healthy as u32, action: 0, until: 0, ..self.entry };
            let unused = NodeEntry { name: [0; 28], ..healthy };
            return if work == Work::Vacate { unused } else { healthy };
        };
        let wanted = self.want.as_ref().filter(|_| work != Work::Place);
        let mode = wanted.map_or(Mode::Enforce, |want| want.mode);
        let policy = Policy { own_node: &told.own, mode, answer: told.answer };
        let until = wanted.map(|want| verdict_until(now, left(want, now)));
        node_entry(&owner.name, owner.slot, &policy, until)
    }

    /// It was written, as far as is known. Gives what it replaced.
    pub(super) fn written(&mut self, entry: NodeEntry) -> Before {
        let before = Before { entry: self.entry, may_cut: self.may_cut };
        self.may_cut = cuts(&entry).then_some(entry.until);
        // The owner's generation comes healthy, and what is wanted after it.
        self.clean = !self.is_unwritten() || self.want.is_none();
        self.entry = entry;
        self.again = None;
        before
    }

    /// That failed: either entry may lie there.
    pub(super) fn failed(&mut self, before: Before, again: u64, error: Arc<str>) {
        let tried = std::mem::replace(&mut self.entry, before.entry);
        let of = |entry: &NodeEntry| cuts(entry).then_some(entry.until);
        self.may_cut = before.may_cut.max(of(&tried));
        self.clean = false;
        self.again = Some(again);
        self.error = Some(error);
    }

    /// This was read in the map in place of what should lie there. It may be old by now, so it proves nothing.
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
