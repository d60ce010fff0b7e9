//! A view as the builder delivers it: all work that costs in proportion to its size is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    claim::ClaimSource,
    index::{ExemptIndex, Reindexed},
    now::{Epoch, Now},
    ports::ExemptPorts,
    scope::LimitScope,
};
use crate::{
    cluster::{ClusterView, NodeName},
    plan::{Exemptions, NodeTables, Slot, VirtualAddresses},
};

/// A node of a view, as far as verdicts need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its place in the map. A place with a generation never has another owner.
    pub slot: Slot,
    /// What tells it from another machine of the same name, where that is known.
    pub uid: Option<Arc<str>>,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Its pool.
    pub pool: Option<Arc<str>>,
}

impl Member {
    /// Whether a claim of this source is about this machine, and not about an earlier one of the same name.
    pub(super) fn is_of(&self, source: &ClaimSource) -> bool {
        source.uid().zip(self.uid.as_ref()).is_none_or(|(claimed, own)| claimed == own)
    }

    /// The scopes in whose limits the node counts.
    pub fn scopes(&self) -> impl Iterator<Item = LimitScope> {
        let zone = self.zone.clone().map(LimitScope::Zone);
        let pool = self.pool.clone().map(LimitScope::Pool);
        std::iter::once(LimitScope::Whole).chain(zone).chain(pool)
    }
}

/// How many of these nodes each scope has.
pub(super) fn sizes(members: &BTreeMap<NodeName, Member>) -> BTreeMap<LimitScope, u32> {
    let mut sizes = BTreeMap::new();
    for scope in members.values().flat_map(Member::scopes) {
        *sizes.entry(scope).or_default() += 1;
    }
    sizes
}

/// What changed since another view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The view since which it changed. `None`: what changed is not known.
    pub base: Option<Epoch>,
    /// Nodes with a place that they did not have in that view.
    pub added: Vec<NodeName>,
    /// Nodes without the place that they had in that view.
    pub left: Vec<(NodeName, Slot)>,
    /// Nodes with backends that they did not have in that view.
    pub grown: Vec<NodeName>,
    /// What changed in the index of exemptions, where that is known.
    pub exempt: Option<Reindexed>,
}

impl Delta {
    /// The delta of which nodes have another place, and which lost one.
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

    /// The delta of which nodes have another place, lost one, or have more backends than in an earlier view. The delta says neither which view that is nor what
    /// changed in exemptions. `members`: the nodes that have a place now.
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

    /// This delta joined with `skipped`, the delta of the view before: what changed since the view against which `skipped` is. `members`: the nodes that have a
    /// place now.
    fn with(&self, skipped: &Self, members: &BTreeMap<NodeName, Member>) -> Self {
        let union = |ours: &[NodeName], others: &[NodeName]| {
            let all: BTreeSet<&NodeName> = ours.iter().chain(others).collect();
            all.into_iter().filter(|name| members.contains_key(*name)).cloned().collect::<Vec<_>>()
        };
        // A node that came with the skipped view had no place before it.
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
    /// When its source was read.
    pub read: Now,
    /// The cluster.
    pub view: Arc<ClusterView>,
    /// Every node that has a place.
    pub members: Arc<BTreeMap<NodeName, Member>>,
    /// How many nodes each scope has.
    pub sizes: Arc<BTreeMap<LimitScope, u32>>,
    /// Which endpoints of each Service kube-proxy here may use.
    pub exempt: Arc<ExemptIndex>,
    /// Where virtual addresses lead.
    pub addresses: Arc<VirtualAddresses>,
    /// The tables that belong to it, without nodes: their entries are the Enforcer's.
    pub tables: Arc<NodeTables>,
    /// What changed.
    pub delta: Delta,
}

impl NewView {
    /// The exemptions of these ports, with the ports that are cut although their address passes.
    pub(super) fn exemptions(&self, exempt: &ExemptPorts) -> Exemptions {
        Exemptions::new(exempt.reasons(), |at| {
            let (node, address) = at;
            let slot = (*self.exempt.slots().get(node.position())?)?;
            self.tables.is_whole(&address.into(), slot.index).then(|| self.exempt.named(at))
        })
    }

    /// This view for a taker that skipped the view before: the delta then also has what changed with that one.
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
