//! Makes of a view and the places of its nodes what the Enforcer takes. Parts that did not change are shared with the view before.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{
    index::ExemptIndex,
    now::{Epoch, Now},
    scope::LimitScope,
    view::{Delta, Member, NewView, sizes},
};
use crate::{
    cluster::{Changed, ClusterView, Node, NodeName},
    plan::{NodePart, NodeTables, Policy, Slot, VirtualAddresses, backend_tables},
    proxy::Mode as ProxyMode,
};

/// Nodes that have places.
struct Members {
    members: Arc<BTreeMap<NodeName, Member>>,
    sizes: Arc<BTreeMap<LimitScope, u32>>,
    /// By the view's position of a node, its place.
    slots: Arc<[Option<Slot>]>,
}

impl NewView {
    /// Builds a [`NewView`] of a whole view. `slots`: the place of a node by its name; a node has the same place as long as it exists. A node without a place gets
    /// no entries, and its traffic flows. `before`: the view that was delivered last; the delta is against it, and parts that did not change are shared with it.
    /// The caller sets when the view was read.
    pub fn build(
        epoch: Epoch,
        view: Arc<ClusterView>,
        slots: impl Fn(&str) -> Option<Slot>,
        pools: impl Fn(&Node) -> Option<Arc<str>>,
        policy: &Policy<'_>,
        proxy: Option<ProxyMode>,
        before: Option<&Self>,
    ) -> Self {
        let since = before.map(|before| (before, view.changed_since(&before.view)));
        let since = since.as_ref();
        let same = since.and_then(|(before, changed)| same_members(before, &view, changed, &pools));
        let Members { members, sizes, slots } = same.unwrap_or_else(|| Members::new(&view, slots, pools));
        let tables = match since {
            Some((before, changed)) => tables(before, &view, changed, &slots, policy),
            None => backend_tables(&view, |name| members.get(name).map(|member| member.slot), policy),
        };
        let followed = since.and_then(|(before, changed)| {
            let index = &before.exempt;
            index.follow(&before.view, &view, changed, policy.own_node, proxy)
        });
        let (exempt, reindexed) = match followed {
            Some((exempt, reindexed)) => (exempt, Some(reindexed)),
            None => (ExemptIndex::new(&view, policy.own_node, proxy, slots), None),
        };
        let addresses = since.filter(|(before, changed)| has_same_addresses(&before.view, &view, changed));
        let addresses = addresses.map(|(before, _)| Arc::clone(&before.addresses));
        let addresses = addresses
            .unwrap_or_else(|| Arc::new(VirtualAddresses::new(view.services.as_deref().unwrap_or_default())));
        let delta = since.map(|(before, _)| Delta {
            base: Some(before.epoch),
            exempt: reindexed,
            ..Delta::between(before, &view, &members)
        });
        let delta = delta.unwrap_or_default();
        Self {
            epoch,
            read: Now { mono: 0, boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH },
            members,
            sizes,
            exempt: Arc::new(exempt),
            addresses,
            tables: Arc::new(tables),
            delta,
            view,
        }
    }
}

impl Members {
    fn new(
        view: &ClusterView,
        slots: impl Fn(&str) -> Option<Slot>,
        pools: impl Fn(&Node) -> Option<Arc<str>>,
    ) -> Self {
        let mut members = BTreeMap::new();
        let mut by_position = Vec::with_capacity(view.nodes.len());
        for node in &view.nodes {
            let slot = slots(&node.name);
            by_position.push(slot);
            let Some(slot) = slot else { continue };
            let member = Member { slot, uid: node.uid.clone(), zone: node.zone.clone(), pool: pools(node) };
            members.insert(node.name.clone(), member);
        }
        let sizes = Arc::new(sizes(&members));
        Self { members: Arc::new(members), sizes, slots: by_position.into() }
    }
}

/// The members of the view before, where all nodes are the same and count in the same limits.
fn same_members(
    before: &NewView,
    view: &ClusterView,
    changed: &Changed,
    pools: &impl Fn(&Node) -> Option<Arc<str>>,
) -> Option<Members> {
    let mut nodes = changed.nodes.as_ref()?.iter().filter_map(|at| view.at(*at));
    let same = nodes.all(|node| {
        let known = before.members.get(&node.name);
        known.is_none_or(|known| {
            (&known.uid, &known.zone) == (&node.uid, &node.zone) && known.pool == pools(node)
        })
    });
    same.then(|| Members {
        members: Arc::clone(&before.members),
        sizes: Arc::clone(&before.sizes),
        slots: Arc::clone(before.exempt.slots()),
    })
}

fn tables(
    before: &NewView,
    view: &ClusterView,
    changed: &Changed,
    slots: &[Option<Slot>],
    policy: &Policy<'_>,
) -> NodeTables {
    if let Some(nodes) = &changed.nodes {
        let mut tables = NodeTables::clone(&before.tables);
        for at in nodes {
            let (Some(node), Some(Some(slot))) = (view.nodes.get(at.position()), slots.get(at.position()))
            else {
                continue;
            };
            tables.put(slot.index, Some(Arc::new(NodePart::new(node, *slot, policy))));
        }
        return tables;
    }
    let mut tables = NodeTables::default();
    for (node, slot) in view.nodes.iter().zip(slots) {
        let Some(slot) = slot else { continue };
        let known = before.members.get(&node.name).filter(|known| known.slot == *slot);
        let is_same = known.is_some() && before.view.shares(node);
        let part = before.tables.part(slot.index).filter(|_| is_same).cloned();
        tables.put(slot.index, Some(part.unwrap_or_else(|| Arc::new(NodePart::new(node, *slot, policy)))));
    }
    tables
}

/// Whether virtual addresses still lead to the same ports of the same Services.
fn has_same_addresses(before: &ClusterView, view: &ClusterView, changed: &Changed) -> bool {
    let Some(changed) = &changed.services else { return false };
    changed.iter().all(|at| {
        let of = |view: &ClusterView| view.services.as_ref()?.get(*at as usize).cloned();
        matches!((of(before), of(view)), (Some(one), Some(other)) if VirtualAddresses::are_same(&one, &other))
    })
}
