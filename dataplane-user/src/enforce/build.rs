//! From a view and the places of its nodes to what the Enforcer takes. Costs in proportion to the view.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    index::ExemptIndex,
    now::Epoch,
    scope::LimitScope,
    view::{Delta, Member, NewView},
};
use crate::{
    cluster::{ClusterView, Node, NodeName},
    plan::{Policy, Slot, Tables, backend_entry},
    proxy::Mode as ProxyMode,
};
use nodefence_common::port_flags;

impl NewView {
    /// Of a whole view. `slots`: the place of a node by its name; one without a place gets nothing, and its traffic flows.
    /// `before`: the view that was delivered last, from which the delta is worked out.
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
        let tables = tables(&view, &members, policy);
        let delta = before.map(|before| delta(before, &view, &members)).unwrap_or_default();
        Self {
            epoch,
            members: Arc::new(members),
            sizes: Arc::new(sizes),
            exempt: Arc::new(exempt),
            tables: Arc::new(tables),
            delta,
            view,
        }
    }
}

fn tables(view: &ClusterView, members: &BTreeMap<NodeName, Member>, policy: &Policy<'_>) -> Tables {
    let mut tables = Tables::default();
    tables.backends.reserve(view.backends());
    for node in &view.nodes {
        let Some(member) = members.get(node.name.as_str()) else { continue };
        for backend in &node.backends {
            let entry = backend_entry(&node.name, member.slot, backend, policy);
            tables.backends.insert(backend.addr(), entry);
            if let Some(key) = backend.port_key() {
                tables.ports.insert(key, port_flags::CUT);
            }
        }
    }
    tables
}

fn delta(before: &NewView, view: &ClusterView, members: &BTreeMap<NodeName, Member>) -> Delta {
    let mut delta = Delta { base: Some(before.epoch), ..Delta::default() };
    for (name, member) in members {
        if before.members.get(name).is_none_or(|old| old.slot != member.slot) {
            delta.added.push(name.clone());
        }
        let backends =
            |view: &ClusterView| view.node(name).map(|node| node.backends.clone()).unwrap_or_default();
        let old = backends(&before.view);
        // Both are in the order of `Backend`.
        if backends(view).iter().any(|backend| old.binary_search(backend).is_err()) {
            delta.grown.push(name.clone());
        }
    }
    for (name, old) in before.members.iter() {
        if members.get(name).is_none_or(|member| member.slot != old.slot) {
            delta.left.push((name.clone(), old.slot));
        }
    }
    delta
}
