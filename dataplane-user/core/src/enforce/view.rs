//! A view as the builder delivers it: with all that costs in proportion to it done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    index::{ExemptIndex, Reindexed},
    now::{Epoch, Now},
    ports::ExemptPorts,
    scope::LimitScope,
};
use crate::{
    cluster::{ClusterView, NodeName},
    plan::{Exemptions, NodeTables, Slot, VirtualAddresses},
};

/// A node of a view, as far as verdicts go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its place in the map. A place and its generation have one owner for ever.
    pub slot: Slot,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Its pool.
    pub pool: Option<Arc<str>>,
}

impl Member {
    /// The scopes whose limits it counts in.
    pub fn scopes(&self) -> impl Iterator<Item = LimitScope> {
        let zone = self.zone.clone().map(LimitScope::Zone);
        let pool = self.pool.clone().map(LimitScope::Pool);
        std::iter::once(LimitScope::Whole).chain(zone).chain(pool)
    }
}

/// What changed since another view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Since this one. `None`: nothing is said of what changed.
    pub base: Option<Epoch>,
    /// Nodes with a place that they did not have there.
    pub added: Vec<NodeName>,
    /// Nodes that had a place there which they have no more.
    pub left: Vec<(NodeName, Slot)>,
    /// Nodes with backends that they did not have there.
    pub grown: Vec<NodeName>,
    /// What of the index of exemptions is another, where that is known.
    pub exempt: Option<Reindexed>,
}

impl Delta {
    /// Who has another place, and who has lost one.
    pub(super) fn of_members(
        before: &BTreeMap<NodeName, Member>,
        after: &BTreeMap<NodeName, Member>,
    ) -> Self {
        let mut delta = Self::default();
        for (name, member) in after {
            if before.get(name).is_none_or(|old| old.slot != member.slot) {
                delta.added.push(name.clone());
            }
        }
        for (name, old) in before {
            if after.get(name).is_none_or(|member| member.slot != old.slot) {
                delta.left.push((name.clone(), old.slot));
            }
        }
        delta
    }

    /// Who has another place, who has lost one and who has more backends than in a view before; which view that is, and what of exemptions changed, is not said.
    /// `members`: who has a place now.
    pub(super) fn between(
        before: &NewView,
        view: &ClusterView,
        members: &Arc<BTreeMap<NodeName, Member>>,
    ) -> Self {
        let grown = view.grown_since(&before.view).map(|node| &node.name);
        let grown = grown.filter(|name| members.contains_key(*name)).cloned().collect();
        let of_members = match Arc::ptr_eq(members, &before.members) {
            true => Self::default(),
            false => Self::of_members(&before.members, members),
        };
        Self { grown, ..of_members }
    }

    /// What changed since what `skipped` is held against, where this is held against the view that `skipped` led to. `members`: who has a place now.
    fn with(&self, skipped: &Self, members: &BTreeMap<NodeName, Member>) -> Self {
        let union = |ours: &[NodeName], others: &[NodeName]| {
            let all: BTreeSet<&NodeName> = ours.iter().chain(others).collect();
            all.into_iter().filter(|name| members.contains_key(*name)).cloned().collect::<Vec<_>>()
        };
        // Whoever came with the view that was skipped had no place before it.
        let was_there = |(name, _): &&(NodeName, Slot)| !skipped.added.contains(name);
        let exempt = self.exempt.as_ref().zip(skipped.exempt.as_ref());
        Self {
            base: skipped.base,
            added: union(&self.added, &skipped.added),
            left: skipped.left.iter().chain(self.left.iter().filter(was_there)).cloned().collect(),
            grown: union(&self.grown, &skipped.grown),
            exempt: exempt.map(|(ours, others)| ours.with(others)),
        }
    }
}

/// A view and what follows from it.
#[derive(Clone, Debug)]
pub struct NewView {
    /// Its number.
    pub epoch: Epoch,
    /// When its source was read, for whoever asks.
    pub read: Now,
    /// Who exists.
    pub view: Arc<ClusterView>,
    /// Every node that has a place.
    pub members: Arc<BTreeMap<NodeName, Member>>,
    /// How many nodes each scope has.
    pub sizes: Arc<BTreeMap<LimitScope, u32>>,
    /// What kube-proxy here may use of each Service.
    pub exempt: Arc<ExemptIndex>,
    /// Where virtual addresses lead.
    pub addresses: Arc<VirtualAddresses>,
    /// The tables that belong to it, without nodes: their entries are the Enforcer's.
    pub tables: Arc<NodeTables>,
    /// What changed.
    pub delta: Delta,
}

impl NewView {
    /// What is exempt, with what is cut all the same at addresses that pass.
    pub(super) fn exemptions(&self, exempt: &ExemptPorts) -> Exemptions {
        Exemptions::new(exempt.reasons(), |at| {
            let (node, address) = at;
            let slot = (*self.exempt.slots().get(node.position())?)?;
            self.tables.is_whole(&address.into(), slot.index).then(|| self.exempt.named(at))
        })
    }

    /// This view for whoever has not taken the one before: what changed with that one changed with this one.
    #[must_use]
    pub fn in_place_of(self: Arc<Self>, skipped: &Self) -> Arc<Self> {
        if self.delta.base != Some(skipped.epoch) {
            return self;
        }
        let mut view = Arc::unwrap_or_clone(self);
        view.delta = view.delta.with(&skipped.delta, &view.members);
        Arc::new(view)
    }
}
