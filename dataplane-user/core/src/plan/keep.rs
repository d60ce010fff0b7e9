//! Fail open: what must not be cut because nothing else is left.
//!
//! kube-proxy goes on sending to the endpoints of a flagged node as long as they are ready in the API. Where all that it may
//! choose from for a virtual address is flagged, a cut would leave the Service with nothing, so these endpoints are kept, each
//! with its port and protocol: for every Service, whatever else the others have.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use nodefence_common::PortKey;

use super::usable::{Proxy, targets, usable};
use crate::{
    cluster::{Backend, ClusterView, Endpoint, NodeIx, NodeSet, Protocol, Scope, Service, TrafficPolicy},
    proxy::Mode as ProxyMode,
};

/// Where to look when a node is flagged, so that a flag does not cost a walk over all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepIndex {
    /// For each node of the view, in its order, its Services.
    services: Vec<Vec<u32>>,
    /// For each node that has any, endpoints that are tied to no node but have the address of one of its backends: index of the
    /// Service, index of the endpoint.
    untied: HashMap<NodeIx, Vec<(u32, u32)>>,
}

impl KeepIndex {
    /// For this view.
    pub fn new(view: &ClusterView) -> Self {
        let mut index = Self { services: vec![Vec::new(); view.nodes.len()], untied: HashMap::new() };
        let mut untied: HashMap<IpAddr, Vec<(u32, u32)>> = HashMap::new();
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            for (e, endpoint) in (0..).zip(&service.endpoints) {
                match endpoint.node.and_then(|node| index.services.get_mut(node.position())) {
                    None => untied.entry(endpoint.address).or_default().push((s, e)),
                    Some(services) if services.last() != Some(&s) => services.push(s),
                    Some(_) => {}
                }
            }
        }
        if untied.is_empty() {
            return index;
        }
        for (at, node) in view.indexed() {
            let addresses: HashSet<IpAddr> = node.backends.iter().map(|backend| backend.address).collect();
            let on_it = addresses.iter().filter_map(|address| untied.get(address)).flatten();
            let on_it: Vec<_> = on_it.copied().collect();
            if !on_it.is_empty() {
                index.untied.insert(at, on_it);
            }
        }
        index
    }
}

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
    pub fn address_key(&self) -> PortKey {
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

    fn add(&mut self, kept: KeptPort, reason: KeptFor) {
        let first = self.ports.entry(kept).or_insert(reason);
        *first = (*first).min(reason);
    }
}

/// What is kept while `flagged` (nodes of the view) bear flags, for traffic that the kube-proxy of `own_node`
/// balances. Endpoints that are tied to no node count as live. `mode`: how it forwards; where that is not known, what any of the
/// three would need.
///
/// A set of flags has one answer, in whatever order they came.
pub fn keep(
    view: &ClusterView,
    index: &KeepIndex,
    own_node: &str,
    mode: Option<ProxyMode>,
    flagged: &NodeSet,
) -> Keep {
    let mut keep = Keep::default();
    let Some(services) = &view.services else { return keep };
    // What iptables and nftables need covers what IPVS does: a property test holds it.
    let proxy = Proxy::of(view, own_node, mode.unwrap_or(ProxyMode::Nftables));
    let touched: BTreeSet<u32> =
        flagged.iter().filter_map(|node| index.services.get(node.position())).flatten().copied().collect();
    for s in touched {
        let Some(service) = services.get(s as usize) else { continue };
        for target in targets(service, proxy.mode) {
            let usable = usable(&target, &proxy, |_| true);
            if usable.iter().all(|endpoint| endpoint.node.is_some_and(|node| flagged.contains(node))) {
                let reason =
                    KeptFor { service: s, port: target.port as u32, why: Why::NothingElse(target.policy) };
                for endpoint in usable {
                    if let Some(kept) = KeptPort::of(service, target.port, endpoint, endpoint.node) {
                        keep.add(kept, reason);
                    }
                }
            }
        }
    }
    for node in flagged.iter() {
        for (s, e) in index.untied.get(&node).into_iter().flatten() {
            let Some(service) = services.get(*s as usize) else { continue };
            for port in 0..service.ports.len() {
                let endpoint = &service.endpoints[*e as usize];
                if let Some(kept) = KeptPort::of(service, port, endpoint, Some(node)) {
                    keep.add(kept, KeptFor { service: *s, port: port as u32, why: Why::Untied });
                }
            }
        }
    }
    keep
}
