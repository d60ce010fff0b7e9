use std::collections::HashSet;

use nodefence_common::{Addr, PortKey};

use super::Flow;

/// A node's backends: which flows are its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    addresses: HashSet<Addr>,
    ports: HashSet<PortKey>,
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

    /// Whether there is nothing to match.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }

    /// Addresses, host-network ones included.
    pub fn addresses(&self) -> impl Iterator<Item = Addr> + '_ {
        self.addresses.iter().copied().chain(self.ports.iter().map(|port| port.addr))
    }

    /// Whether the flow's answers come from one of these backends: the source of the reply direction is what is left after
    /// every translation.
    pub fn matches(&self, flow: &Flow) -> bool {
        let reply = &flow.reply;
        self.addresses.contains(&reply.src)
            || (!self.ports.is_empty()
                && self.ports.contains(&PortKey {
                    addr: reply.src,
                    port: reply.src_port,
                    protocol: reply.protocol,
                    zero: 0,
                }))
    }
}
