//! Which ports are exempt and why: a set that is cheap to hand out and to change by a few.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    cluster::Protocol,
    plan::{At, ExemptFor, ExemptPort},
};

/// How many parts the set has: a change copies one part, where somebody still reads it.
const PARTS: usize = 64;

type Part = Arc<BTreeSet<(ExemptPort, ExemptFor)>>;

/// Ports that are exempt, each with every reason. A clone costs nothing.
#[derive(Clone, Debug)]
pub struct ExemptPorts {
    /// All ports of a node are in one part.
    parts: Arc<[Part; PARTS]>,
    ports: usize,
}

impl Default for ExemptPorts {
    fn default() -> Self {
        Self { parts: Arc::new(std::array::from_fn(|_| Part::default())), ports: 0 }
    }
}

impl ExemptPorts {
    /// Adds a reason. Whether the port was not exempt before.
    pub(super) fn insert(&mut self, port: ExemptPort, reason: ExemptFor) -> bool {
        let new = self.reason(&port).is_none();
        self.ports += usize::from(new);
        self.part_mut(&port).insert((port, reason));
        new
    }

    /// Takes a reason away. Whether the port is not exempt any more.
    pub(super) fn remove(&mut self, port: ExemptPort, reason: ExemptFor) -> bool {
        let gone = self.part_mut(&port).remove(&(port, reason)) && self.reason(&port).is_none();
        self.ports -= usize::from(gone);
        gone
    }

    fn part(&self, port: &ExemptPort) -> &BTreeSet<(ExemptPort, ExemptFor)> {
        &self.parts[port.node.position() % PARTS]
    }

    fn part_mut(&mut self, port: &ExemptPort) -> &mut BTreeSet<(ExemptPort, ExemptFor)> {
        Arc::make_mut(&mut Arc::make_mut(&mut self.parts)[port.node.position() % PARTS])
    }

    /// How many ports are exempt.
    pub fn len(&self) -> usize {
        self.ports
    }

    /// Whether no port is exempt.
    pub fn is_empty(&self) -> bool {
        self.ports == 0
    }

    /// The first reason, by Service, for which a port is exempt.
    pub fn reason(&self, port: &ExemptPort) -> Option<ExemptFor> {
        let (found, reason) = self.part(port).range(lowest(*port)..).next()?;
        (found == port).then_some(*reason)
    }

    /// Every port with every reason.
    pub fn iter(&self) -> impl Iterator<Item = &(ExemptPort, ExemptFor)> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// The exempt ports at an address.
    pub(super) fn at(&self, at: At) -> BTreeSet<ExemptPort> {
        let (node, address) = at;
        let first = ExemptPort { node, address, port: 0, protocol: Protocol::Tcp };
        let ports = self.part(&first).range(lowest(first)..).map(|(port, _)| *port);
        ports.take_while(|port| port.at() == at).collect()
    }

    /// Each port with its first reason. Costs in proportion to the number of exempt ports.
    pub(super) fn reasons(&self) -> BTreeMap<ExemptPort, ExemptFor> {
        let mut reasons = BTreeMap::new();
        for (port, reason) in self.iter() {
            reasons.entry(*port).or_insert(*reason);
        }
        reasons
    }
}

/// The lowest entry that a port can have: none of the port's entries sorts before it.
fn lowest(port: ExemptPort) -> (ExemptPort, ExemptFor) {
    use crate::{cluster::TrafficPolicy, plan::Why};
    (port, ExemptFor { service: 0, port: 0, why: Why::NothingElse(TrafficPolicy::Cluster) })
}
