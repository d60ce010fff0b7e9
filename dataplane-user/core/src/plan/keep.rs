//! Fail open: what must not be cut because nothing else is left.
//!
//! kube-proxy goes on sending to the endpoints of a flagged node as long as they are ready in the API. Where all that it may
//! choose from for a virtual address is flagged, a cut would leave the Service with nothing, so these endpoints are kept, each
//! with its port and protocol: for every Service, whatever else the others have.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use nodefence_common::PortKey;

use crate::cluster::{Backend, Endpoint, NodeIx, Protocol, Scope, Service, TrafficPolicy};

/// A port that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptPort {
    /// Its node.
    pub node: NodeIx,
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's own port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl KeptPort {
    /// What a port of a Service has there, as an endpoint of the node; `None` where it has nothing, or the endpoint no node.
    pub fn of(service: &Service, port: usize, endpoint: &Endpoint, node: Option<NodeIx>) -> Option<Self> {
        Some(Self {
            node: node?,
            address: endpoint.address,
            port: service.target(port, endpoint)?,
            protocol: service.ports.get(port)?.protocol,
        })
    }

    /// Its key in `ports`.
    pub fn key(&self) -> PortKey {
        PortKey::kept(self.address.into(), self.port, self.protocol.number())
    }

    /// The key in `ports` that says that some port of the address is kept.
    pub(crate) fn address_key(&self) -> PortKey {
        PortKey::kept_address(self.address.into())
    }

    /// As people write it.
    pub fn backend(&self) -> Backend {
        Backend { address: self.address, scope: Scope::Port(self.port, self.protocol) }
    }
}

/// Why a port is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// All that the port of the Service may use here under that policy is on flagged nodes.
    NothingElse(TrafficPolicy),
    /// The Service names the address without a node, so it is never cut.
    Untied,
}

/// For which Service a port is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptFor {
    /// Index in the view.
    pub service: u32,
    /// Index into its ports.
    pub port: u32,
    /// Why.
    pub why: Why,
}

/// All that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// For each kept port the first reason, by Service.
    pub ports: BTreeMap<KeptPort, KeptFor>,
}

impl Keep {
    /// The kept ports of a node's backends.
    pub fn of_node(&self, node: NodeIx) -> impl Iterator<Item = &KeptPort> {
        // Ports are in the order of their nodes.
        let first = KeptPort { node, address: IpAddr::from([0; 4]), port: 0, protocol: Protocol::Tcp };
        self.ports.range(first..).map(|(port, _)| port).take_while(move |port| port.node == node)
    }

    /// What must lie in `ports` for it, with [`nodefence_common::port_flags::KEEP`].
    pub fn keys(&self) -> BTreeSet<PortKey> {
        self.ports.keys().flat_map(|kept| [kept.key(), kept.address_key()]).collect()
    }
}
