//! Exemptions (fail open): ports that must not be cut because nothing else is left.
//!
//! kube-proxy goes on sending to the endpoints of a flagged node as long as they are ready in the API. Where all endpoints that it may
//! choose from for a virtual address are on flagged nodes, a cut would leave the Service with nothing. So these endpoints are exempt, each
//! with its port and protocol. This holds for every Service, whatever other Services have.
//!
//! An endpoint may ask others before it answers, and their answers come to a port that nobody can name beforehand. So where an address is
//! a backend as a whole, all of it passes but for the ports that other Services name there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use nodefence_common::{PortKey, port_flags};

use crate::cluster::{Backend, ClusterView, Endpoint, Node, NodeIx, Protocol, Scope, Service, TrafficPolicy};

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
    /// The port where an endpoint takes the traffic of a Service's port; `None` where it has no such port, or no node.
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

    /// The port's node and address.
    pub(crate) fn at(&self) -> At {
        (self.node, self.address)
    }

    /// The port as people write it.
    pub fn backend(&self) -> Backend {
        Backend { address: self.address, scope: Scope::Port(self.port, self.protocol) }
    }
}

/// Why a port is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// All endpoints that the Service's port may use here under this policy are on flagged nodes.
    NothingElse(TrafficPolicy),
    /// The Service names the address without a node, so it is never cut.
    Untied,
    /// The Service is left out ([`ServiceMode`](crate::cluster::ServiceMode)).
    LeftOut,
}

/// The ports on nodes of endpoints of Services that are left out, each with its Service and the port's index there.
pub fn left_out(view: &ClusterView) -> impl Iterator<Item = (ExemptPort, ExemptFor)> + '_ {
    let services = (0..).zip(view.services.iter().flatten());
    services.filter(|(_, service)| service.mode.is_left_out()).flat_map(|(position, service)| {
        service.endpoints.iter().flat_map(move |endpoint| {
            (0..service.ports.len()).filter_map(move |port| {
                let reason = ExemptFor { service: position, port: port as u32, why: Why::LeftOut };
                Some((ExemptPort::of(service, port, endpoint, endpoint.node)?, reason))
            })
        })
    })
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

/// All exemptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions {
    /// For each exempt port the first reason, by Service.
    pub ports: BTreeMap<ExemptPort, ExemptFor>,
    /// Addresses that pass as a whole, since they have an exempt port. For each, the ports that Services name there and that are not exempt.
    pub(crate) whole: BTreeMap<At, BTreeSet<ExemptPort>>,
}

impl Exemptions {
    /// `named`: the ports that Services name at an address that is a backend as a whole; `None` for an address of which only ports are backends.
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

    /// The backends of a node that are cut when the node is. At an address that passes as a whole, these are ports.
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

    /// The keys that must lie in `ports`, each with its value ([`port_flags`]).
    pub fn keys(&self) -> BTreeMap<PortKey, u32> {
        let exempt = self.ports.keys().map(|port| (port.key(), port_flags::EXEMPT));
        let whole = self.whole.keys();
        let whole =
            whole.map(|(_, address)| (PortKey::exempt_address((*address).into()), port_flags::EXEMPT));
        let cut = self.whole.values().flatten().map(|port| (port.key(), port_flags::CUT));
        // Later entries win: where two nodes have one address, an exemption of either holds.
        cut.chain(exempt).chain(whole).collect()
    }
}
