//! What of a view must lie in the tables, held by node: two views share the parts of nodes in which nothing changed.

use std::{collections::HashMap, sync::Arc};

use nodefence_common::{Addr, BackendEntry, PortKey, backend_flags, port_flags};

use super::{
    indices::Slot,
    tables::Tables,
    wanted::{Policy, backend_entry},
};
use crate::{
    cluster::{ClusterView, Node},
    list::List,
};

/// What of one node must lie in the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart {
    /// Its backends' addresses, sorted, each once.
    pub(super) backends: Box<[(Addr, BackendEntry)]>,
    /// Its host-network endpoints, sorted, each once. The value is [`port_flags::CUT`].
    pub(super) ports: Box<[(PortKey, u32)]>,
}

impl NodePart {
    /// Of a node with this place.
    pub fn new(node: &Node, slot: Slot, policy: &Policy<'_>) -> Self {
        let entry = |backend| backend_entry(&node.name, slot, backend, policy);
        let mut backends: Vec<_> = node.backends.iter().map(|one| (one.addr(), entry(one))).collect();
        backends.sort_unstable_by_key(|(addr, _)| *addr);
        backends.dedup_by_key(|(addr, _)| *addr);
        let mut ports: Vec<_> = node.backends.iter().filter_map(|one| one.port_key()).collect();
        ports.sort_unstable();
        ports.dedup();
        let ports = ports.into_iter().map(|key| (key, port_flags::CUT)).collect();
        Self { backends: backends.into(), ports }
    }
}

/// All that must lie in the tables. An address is a backend of one node at most. The order in which a writer must bring it in is that of [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct NodeTables {
    /// By the place of the node.
    parts: List<Option<Arc<NodePart>>>,
    backends: usize,
    ports: usize,
}

impl NodeTables {
    /// Puts a node's part in the place of what was there.
    pub fn put(&mut self, index: u32, part: Option<Arc<NodePart>>) {
        let at = index as usize;
        while self.parts.len() <= at {
            self.parts.push(None);
        }
        let sizes = |part: &Option<Arc<NodePart>>| {
            part.as_ref().map_or((0, 0), |part| (part.backends.len(), part.ports.len()))
        };
        let Some(there) = self.parts.get_mut(at) else { return };
        let (before, after) = (sizes(there), sizes(&part));
        *there = part;
        self.backends = self.backends + after.0 - before.0;
        self.ports = self.ports + after.1 - before.1;
    }

    /// The part of the node that has this place.
    pub fn part(&self, index: u32) -> Option<&Arc<NodePart>> {
        self.parts.get(index as usize)?.as_ref()
    }

    /// How many backends' addresses.
    pub const fn backends(&self) -> usize {
        self.backends
    }

    /// How many host-network endpoints.
    pub const fn ports(&self) -> usize {
        self.ports
    }

    /// The address' entry, where the node with this place has it.
    pub fn backend(&self, addr: &Addr, index: u32) -> Option<BackendEntry> {
        let backends = &self.part(index)?.backends;
        let at = backends.binary_search_by_key(addr, |(addr, _)| *addr).ok()?;
        backends.get(at).map(|(_, entry)| *entry)
    }

    /// Whether the address is a backend as a whole of the node with this place.
    pub(crate) fn is_whole(&self, addr: &Addr, index: u32) -> bool {
        self.backend(addr, index).is_some_and(|entry| entry.flags & backend_flags::PORT_SCOPED == 0)
    }

    /// All addresses and their entries.
    pub(crate) fn all_backends(&self) -> impl Iterator<Item = (Addr, BackendEntry)> {
        self.parts.iter().flatten().flat_map(|part| part.backends.iter().copied())
    }

    /// All host-network endpoints and their flags.
    pub fn all_ports(&self) -> impl Iterator<Item = (PortKey, u32)> {
        self.parts.iter().flatten().flat_map(|part| part.ports.iter().copied())
    }

    /// The same by address. Costs in proportion to all of it.
    pub(crate) fn flat(&self) -> Tables {
        let mut backends = HashMap::with_capacity(self.backends);
        backends.extend(self.all_backends());
        Tables { backends, ports: self.all_ports().collect() }
    }

    /// Nodes whose part is not the one that `before` has, by their place, with both parts.
    pub(super) fn changed_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a NodePart>, Option<&'a NodePart>)> {
        let both = self.parts.not_shared(&before.parts).map(move |at| {
            let of = |tables: &'a Self| tables.parts.get(at).and_then(Option::as_ref);
            (of(before), of(self))
        });
        let both = both.filter(|(before, after)| match (before, after) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            (before, after) => before.is_some() || after.is_some(),
        });
        both.map(|(before, after)| (before.map(|part| &**part), after.map(|part| &**part)))
    }
}

/// What of a view must lie in the tables. `slots`: the place of a node by its name; one without a place gets nothing, and its traffic
/// flows.
pub(crate) fn backend_tables(
    view: &ClusterView,
    slots: impl Fn(&str) -> Option<Slot>,
    policy: &Policy<'_>,
) -> NodeTables {
    let mut tables = NodeTables::default();
    for node in &view.nodes {
        let Some(slot) = slots(&node.name) else { continue };
        tables.put(slot.index, Some(Arc::new(NodePart::new(node, slot, policy))));
    }
    tables
}
