//! The entries of a view that must lie in the tables, by node: two views share the parts of nodes in which nothing changed.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use nodefence_common::{Addr, BackendEntry, PortKey, backend_flags, port_flags};

use super::{
    indices::Slot,
    policy::{Policy, backend_entry},
    tables::Tables,
};
use crate::{
    cluster::{Backend, ClusterView, Node},
    list::List,
};

/// The entries of one node that must lie in the tables. They follow from the node, which the view has anyway: there is an entry for each backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart {
    node: Arc<Node>,
    slot: Slot,
    /// Whether the agent runs on this node.
    is_own: bool,
    /// How many addresses it has.
    backends: usize,
    /// How many host-network endpoints it has.
    ports: usize,
}

impl NodePart {
    /// The part of a node with this place.
    pub fn new(node: &Arc<Node>, slot: Slot, policy: &Policy<'_>) -> Self {
        let is_own = node.name == policy.own_node;
        let part = Self { node: Arc::clone(node), slot, is_own, backends: 0, ports: 0 };
        Self { backends: part.entries().count(), ports: part.keys().count(), ..part }
    }

    /// Its backends' addresses, each once, in the order of the node's backends.
    fn entries(&self) -> impl Iterator<Item = (Addr, BackendEntry)> + '_ {
        let each = self.node.backends.chunk_by(|one, other| one.address == other.address);
        each.filter_map(|same| same.first()).map(|backend| (backend.addr(), self.entry(backend)))
    }

    fn entry(&self, backend: &Backend) -> BackendEntry {
        backend_entry(self.slot, self.is_own, backend)
    }

    /// Its host-network endpoints, each once. The value is [`port_flags::CUT`].
    fn keys(&self) -> impl Iterator<Item = (PortKey, u32)> + '_ {
        let keys = self.node.backends.iter().filter_map(Backend::port_key);
        keys.map(|key| (key, port_flags::CUT))
    }

    /// Its backends' addresses, sorted, each once.
    pub(super) fn backends(&self) -> Vec<(Addr, BackendEntry)> {
        let mut backends: Vec<_> = self.entries().collect();
        // IPv6 may stand before IPv4 here and behind it there.
        backends.sort_unstable_by_key(|(addr, _)| *addr);
        backends
    }

    /// Its host-network endpoints, sorted, each once.
    pub(super) fn ports(&self) -> Vec<(PortKey, u32)> {
        let mut ports: Vec<_> = self.keys().collect();
        ports.sort_unstable();
        ports
    }

    fn backend(&self, addr: &Addr) -> Option<BackendEntry> {
        let address = IpAddr::from(*addr);
        let backends = &self.node.backends;
        let at = backends.partition_point(|backend| backend.address < address);
        backends.get(at).filter(|backend| backend.address == address).map(|backend| self.entry(backend))
    }
}

/// All entries that must lie in the tables. An address is a backend of one node at most. A writer must write them in the order of [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct NodeTables {
    /// By the place of the node.
    parts: List<Option<Arc<NodePart>>>,
    backends: usize,
    ports: usize,
}

impl NodeTables {
    /// Replaces the part at a place.
    pub fn put(&mut self, index: u32, part: Option<Arc<NodePart>>) {
        let at = index as usize;
        while self.parts.len() <= at {
            self.parts.push(None);
        }
        let sizes =
            |part: &Option<Arc<NodePart>>| part.as_ref().map_or((0, 0), |part| (part.backends, part.ports));
        let Some(there) = self.parts.get_mut(at) else { return };
        let before = sizes(there);
        let after = sizes(&part);
        *there = part;
        self.backends = self.backends + after.0 - before.0;
        self.ports = self.ports + after.1 - before.1;
    }

    /// The part of the node that has this place.
    pub fn part(&self, index: u32) -> Option<&Arc<NodePart>> {
        self.parts.get(index as usize)?.as_ref()
    }

    /// How many backends' addresses there are.
    pub const fn backends(&self) -> usize {
        self.backends
    }

    /// How many host-network endpoints there are.
    pub const fn ports(&self) -> usize {
        self.ports
    }

    /// The address' entry, where the node with this place has it.
    pub fn backend(&self, addr: &Addr, index: u32) -> Option<BackendEntry> {
        self.part(index)?.backend(addr)
    }

    /// Whether the address is a backend as a whole of the node with this place.
    pub(crate) fn is_whole(&self, addr: &Addr, index: u32) -> bool {
        self.backend(addr, index).is_some_and(|entry| entry.flags & backend_flags::PORT_SCOPED == 0)
    }

    /// All addresses and their entries.
    pub(crate) fn all_backends(&self) -> impl Iterator<Item = (Addr, BackendEntry)> {
        self.parts.iter().flatten().flat_map(|part| part.entries())
    }

    /// All host-network endpoints and their flags.
    pub fn all_ports(&self) -> impl Iterator<Item = (PortKey, u32)> {
        self.parts.iter().flatten().flat_map(|part| part.keys())
    }

    /// The tables by address. Costs in proportion to all entries.
    pub(crate) fn flat(&self) -> Tables {
        let mut backends = HashMap::with_capacity(self.backends);
        backends.extend(self.all_backends());
        Tables { backends, ports: self.all_ports().collect() }
    }

    /// Nodes whose part differs from that in `before`, by their place, with both parts.
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

/// The tables of a view. `slots`: the place of a node by its name; a node without a place gets no entries, and its traffic flows.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Protocol, Scope},
        plan::{Answer, Mode},
    };

    #[test]
    fn what_lies_in_the_tables_is_in_the_order_of_its_keys_and_each_is_found() {
        let (one, other) = (Scope::Port(80, Protocol::Tcp), Scope::Port(80, Protocol::Udp));
        // In the order of a node's backends. In the order of keys the last two come first.
        let backends = [
            ("10.0.0.1", Scope::Address),
            ("10.0.0.2", one),
            ("10.0.0.2", other),
            ("::5:6", Scope::Address),
            ("::5:7", one),
        ];
        let backend = |(address, scope): (&str, Scope)| Backend { address: address.parse().unwrap(), scope };
        let backends: Vec<Backend> = backends.into_iter().map(backend).collect();
        let node = Node {
            name: "a".into(),
            uid: None,
            addresses: Vec::new(),
            zone: None,
            pool: None,
            backends: backends.clone(),
            left_out: Vec::new(),
        };
        let slot = Slot { index: 3, generation: 4 };
        let policy = Policy { own_node: "a", mode: Mode::Enforce, answer: Answer::Refuse };
        let part = NodePart::new(&Arc::new(node), slot, &policy);
        let (entries, ports) = (part.backends(), part.ports());
        assert!(entries.is_sorted_by_key(|(addr, _)| *addr) && ports.is_sorted());
        assert_eq!((entries.len(), ports.len()), (4, 3));
        assert_eq!((part.backends, part.ports), (4, 3));
        let mut tables = NodeTables::default();
        tables.put(3, Some(Arc::new(part)));
        for backend in &backends {
            let entry = tables.backend(&backend.addr(), 3).unwrap();
            assert_eq!((entry.node, entry.generation), (3, 4));
            let is_whole = backend.scope == Scope::Address;
            assert_eq!(tables.is_whole(&backend.addr(), 3), is_whole, "{backend}");
            assert!(entries.contains(&(backend.addr(), entry)) && entry.flags & backend_flags::OWN != 0);
        }
        let other: Addr = IpAddr::from([10, 0, 0, 3]).into();
        assert_eq!((tables.backend(&other, 3), tables.backend(&backends[0].addr(), 2)), (None, None));
    }
}
