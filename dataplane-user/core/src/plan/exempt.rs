//! Fail open: what must not be cut because nothing else is left.
//!
//! kube-proxy goes on sending to the endpoints of a flagged node as long as they are ready in the API. Where all that it may
//! choose from for a virtual address is flagged, a cut would leave the Service with nothing, so these endpoints are exempt, each
//! with its port and protocol: for every Service, whatever else the others have.
//!
//! An endpoint asks others before it answers, and their answers come to a port that nobody can name beforehand. So where an address is a
//! backend as a whole, all of it passes but for the ports that other Services name there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use nodefence_common::{PortKey, port_flags};

use crate::cluster::{Backend, Endpoint, Node, NodeIx, Protocol, Scope, Service, TrafficPolicy};

/// A port that is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExemptPort {
    /// Its node.
    pub node: NodeIx,
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's own port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl ExemptPort {
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
        PortKey::exempt(self.address.into(), self.port, self.protocol.number())
    }

    /// Where it is.
    pub(crate) fn at(&self) -> At {
        (self.node, self.address)
    }

    /// As people write it.
    pub fn backend(&self) -> Backend {
        Backend { address: self.address, scope: Scope::Port(self.port, self.protocol) }
    }
}

/// Why a port is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// All that the port of the Service may use here under that policy is on flagged nodes.
    NothingElse(TrafficPolicy),
    /// The Service names the address without a node, so it is never cut.
    Untied,
}

/// For which Service a port is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExemptFor {
    /// Index in the view.
    pub service: u32,
    /// Index into its ports.
    pub port: u32,
    /// Why.
    pub why: Why,
}

/// Where a port is: its node, and its address there.
pub(crate) type At = (NodeIx, IpAddr);

/// All that is exempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions {
    /// For each exempt port the first reason, by Service.
    pub ports: BTreeMap<ExemptPort, ExemptFor>,
    /// Addresses that pass as a whole, since they have an exempt port; and of each the ports that Services name there and that are not exempt.
    pub(crate) whole: BTreeMap<At, BTreeSet<ExemptPort>>,
}

impl Exemptions {
    /// `named`: what Services name at an address that is a backend as a whole; `None` for one of which only ports are.
    pub(crate) fn new(
        ports: BTreeMap<ExemptPort, ExemptFor>,
        named: impl Fn(At) -> Option<BTreeSet<ExemptPort>>,
    ) -> Self {
        let at: BTreeSet<At> = ports.keys().map(ExemptPort::at).collect();
        let whole = at.into_iter().filter_map(|at| Some((at, named(at)?)));
        let not_exempt = |named: BTreeSet<ExemptPort>| {
            named.into_iter().filter(|port| !ports.contains_key(port)).collect::<BTreeSet<_>>()
        };
        let whole = whole.map(|(at, named)| (at, not_exempt(named))).collect();
        Self { ports, whole }
    }

    /// The exempt ports of a node's backends.
    pub fn of_node(&self, node: NodeIx) -> impl Iterator<Item = &ExemptPort> {
        // Ports are in the order of their nodes.
        let first = ExemptPort { node, address: IpAddr::from([0; 4]), port: 0, protocol: Protocol::Tcp };
        self.ports.range(first..).map(|(port, _)| port).take_while(move |port| port.node == node)
    }

    /// What of a node's backends is cut where the node is: of an address that passes as a whole, ports.
    pub fn cut<'a>(&'a self, at: NodeIx, node: &'a Node) -> impl Iterator<Item = Backend> + 'a {
        node.backends.iter().flat_map(move |backend| {
            let (whole, ports) = match backend.scope {
                Scope::Address => {
                    let ports = self.whole.get(&(at, backend.address));
                    (ports.is_none(), ports)
                }
                Scope::Port(port, protocol) => {
                    let port = ExemptPort { node: at, address: backend.address, port, protocol };
                    (!self.ports.contains_key(&port), None)
                }
            };
            let ports = ports.into_iter().flatten().map(ExemptPort::backend);
            whole.then_some(*backend).into_iter().chain(ports)
        })
    }

    /// What must lie in `ports` for it, each with its value ([`port_flags`]).
    pub fn keys(&self) -> BTreeMap<PortKey, u32> {
        let exempt = self.ports.keys().map(|port| (port.key(), port_flags::EXEMPT));
        let whole = self.whole.keys();
        let whole =
            whole.map(|(_, address)| (PortKey::exempt_address((*address).into()), port_flags::EXEMPT));
        let cut = self.whole.values().flatten().map(|port| (port.key(), port_flags::CUT));
        // Of two nodes with one address, what one keeps is exempt.
        cut.chain(exempt).chain(whole).collect()
    }
}
