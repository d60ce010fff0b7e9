//! Nodes that bear a verdict: a list that is cheap to hand out and to change by a few of them.

use nodefence_common::Action;

use crate::{cluster::NodeName, list::List, plan::Slot};

/// A node that bears a verdict, or is about to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The node's name; `None` where only its place is still known.
    pub name: Option<NodeName>,
    /// The node's place.
    pub slot: Slot,
    /// What is done with packets to the node.
    pub action: Action,
    /// Since when (CLOCK_MONOTONIC, ns) it bears the verdict without a break.
    pub since: u64,
    /// Rounds of challenges count that began at this time (CLOCK_MONOTONIC, ns) or later: earlier ones left out clients of what is cut now.
    pub challenge_since: u64,
}

/// Bearers by their place. A clone costs next to nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bearers {
    by_place: List<Option<Bearer>>,
}

impl Bearers {
    /// Sets the bearer at a place.
    pub(super) fn put(&mut self, index: u32, bearer: Option<Bearer>) {
        let at = index as usize;
        if self.by_place.get(at).map_or(bearer.is_none(), |there| *there == bearer) {
            return;
        }
        while self.by_place.len() <= at {
            self.by_place.push(None);
        }
        let Some(there) = self.by_place.get_mut(at) else { return };
        *there = bearer;
    }

    /// The bearer at this place.
    pub fn at(&self, index: u32) -> Option<&Bearer> {
        self.by_place.get(index as usize)?.as_ref()
    }

    /// The bearer at this place with this generation.
    pub fn get(&self, slot: Slot) -> Option<&Bearer> {
        self.at(slot.index).filter(|bearer| bearer.slot == slot)
    }

    /// All bearers, by place.
    pub fn iter(&self) -> impl Iterator<Item = &Bearer> {
        self.by_place.iter().flatten()
    }

    /// The bearers that differ, by place: before, now.
    pub fn changed_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Bearer>, Option<&'a Bearer>)> {
        let both = self.by_place.not_shared(&before.by_place).map(move |at| {
            let of = |bearers: &'a Self| bearers.by_place.get(at).and_then(Option::as_ref);
            (of(before), of(self))
        });
        both.filter(|(before, now)| before != now)
    }
}

impl FromIterator<Bearer> for Bearers {
    fn from_iter<I: IntoIterator<Item = Bearer>>(all: I) -> Self {
        let mut bearers = Self::default();
        all.into_iter().for_each(|bearer| bearers.put(bearer.slot.index, Some(bearer)));
        bearers
    }
}
