//! From a view and the places of its nodes to what the Enforcer takes. Costs in proportion to the view.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{
    index::ExemptIndex,
    now::Epoch,
    scope::LimitScope,
    view::{Delta, Member, NewView},
};
use crate::{
    cluster::{ClusterView, Node, NodeName},
    plan::{Policy, Slot, backend_tables},
    proxy::Mode as ProxyMode,
};

impl NewView {
    /// Of a whole view. `slots`: the place of a node by its name; one without a place gets nothing, and its traffic flows.
    /// `before`: the view that was delivered last, from which the delta is worked out. When it was read is for the caller to say.
    pub fn build(
        epoch: Epoch,
        view: Arc<ClusterView>,
        slots: impl Fn(&str) -> Option<Slot>,
        pools: impl Fn(&Node) -> Option<Arc<str>>,
        policy: &Policy<'_>,
        proxy: Option<ProxyMode>,
        before: Option<&Self>,
    ) -> Self {
        let mut members = BTreeMap::new();
        let mut by_position = Vec::with_capacity(view.nodes.len());
        let mut sizes: BTreeMap<LimitScope, u32> = BTreeMap::new();
        for node in &view.nodes {
            let slot = slots(&node.name);
            by_position.push(slot);
            let Some(slot) = slot else { continue };
            let member = Member { slot, zone: node.zone.as_deref().map(Arc::from), pool: pools(node) };
            for scope in member.scopes() {
                *sizes.entry(scope).or_default() += 1;
            }
            members.insert(node.name.clone(), member);
        }
        let exempt = ExemptIndex::new(&view, policy.own_node, proxy, by_position.into());
        let tables = backend_tables(&view, |name| members.get(name).map(|member| member.slot), policy);
        let delta = before.map(|before| delta(before, &view, &members)).unwrap_or_default();
        Self {
            epoch,
            read: Timestamp::UNIX_EPOCH,
            members: Arc::new(members),
            sizes: Arc::new(sizes),
            exempt: Arc::new(exempt),
            tables: Arc::new(tables),
            delta,
            view,
        }
    }
}

fn delta(before: &NewView, view: &ClusterView, members: &BTreeMap<NodeName, Member>) -> Delta {
    let grown = view.grown_since(&before.view).map(|node| node.name.clone());
    Delta {
        base: Some(before.epoch),
        grown: grown.filter(|name| members.contains_key(name)).collect(),
        ..Delta::of_members(&before.members, members)
    }
}
