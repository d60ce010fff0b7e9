use std::collections::HashSet;

use nodefence_common::{Addr, PortKey};

use super::{Family, Flow, Tuple};

/// A node's backends: which flows are its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    addresses: HashSet<Addr>,
    ports: HashSet<PortKey>,
    /// What of the above is no concern of ours.
    spared: HashSet<PortKey>,
}

impl Backends {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend that owns its address: every port and protocol is its.
    pub fn add_address(&mut self, addr: Addr) {
        self.addresses.insert(addr);
    }

    /// A host-network backend: only this address, port and protocol.
    pub fn add_port(&mut self, port: PortKey) {
        self.ports.insert(port);
    }

    /// Flows to this port of a backend do not count as its own.
    pub fn spare(&mut self, addr: Addr, port: u16, protocol: u8) {
        self.spared.insert(PortKey::endpoint(addr, port, protocol));
    }

    /// Adds all of another node's.
    pub fn extend(&mut self, other: Self) {
        self.addresses.extend(other.addresses);
        self.ports.extend(other.ports);
        self.spared.extend(other.spared);
    }

    /// Whether there is nothing to match.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }

    /// Addresses, host-network ones included.
    pub fn addresses(&self) -> impl Iterator<Item = Addr> + '_ {
        self.addresses.iter().copied().chain(self.ports.iter().map(|port| port.addr))
    }

    /// Those whose flows are in this half of the table.
    pub(super) fn of(&self, family: Family) -> Self {
        let ports = |ports: &HashSet<PortKey>| {
            ports.iter().filter(|port| Family::of(port.addr) == family).copied().collect()
        };
        Self {
            addresses: self.whole().filter(|addr| Family::of(*addr) == family).collect(),
            ports: ports(&self.ports),
            spared: ports(&self.spared),
        }
    }

    /// Those with this address as a whole and with spared ports: what no filter can say.
    pub(super) fn with_spared(&self) -> Self {
        let spared: HashSet<PortKey> =
            self.spared.iter().filter(|port| self.addresses.contains(&port.addr)).copied().collect();
        Self { addresses: spared.iter().map(|port| port.addr).collect(), ports: HashSet::new(), spared }
    }

    /// Addresses that are backends as a whole.
    pub(super) fn whole(&self) -> impl Iterator<Item = Addr> + '_ {
        self.addresses.iter().copied()
    }

    /// Whether it is such an address.
    pub(super) fn is_whole(&self, addr: Addr) -> bool {
        self.addresses.contains(&addr)
    }

    /// Host-network backends that are not spared.
    pub(super) fn ports(&self) -> impl Iterator<Item = PortKey> + '_ {
        self.ports.difference(&self.spared).copied()
    }

    /// Whether the flow's answers come from one of these backends: the source of the reply direction is what is left after
    /// every translation.
    pub fn matches(&self, flow: &Flow) -> bool {
        let Tuple { src, src_port, protocol, .. } = flow.reply;
        self.contains(src, src_port, protocol)
    }

    /// Whether this port is one of these backends'.
    pub fn contains(&self, addr: Addr, port: u16, protocol: u8) -> bool {
        let key = || PortKey::endpoint(addr, port, protocol);
        if !self.spared.is_empty() && self.spared.contains(&key()) {
            return false;
        }
        self.addresses.contains(&addr) || (!self.ports.is_empty() && self.ports.contains(&key()))
    }
}
