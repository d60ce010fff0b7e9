//! Which endpoints kube-proxy sends traffic to: the rules of Kubernetes 1.36 (pkg/proxy), as one pure function.
//!
//! kube-proxy has a proxier for each IP family; endpoints of the other family do not exist for it.

use std::{collections::BTreeSet, net::SocketAddr};

use crate::{
    cluster::{ClusterView, Endpoint, Family, Hints, NodeIx, Service, TrafficPolicy},
    proxy::Mode as ProxyMode,
};

/// The kube-proxy of one node.
#[derive(Clone, Copy, Debug)]
pub struct Proxy<'a> {
    /// How kube-proxy forwards.
    pub mode: ProxyMode,
    /// Its node's position in the view; `None` where the view lacks that node: then no endpoint is local.
    pub index: Option<NodeIx>,
    /// Its node's name.
    pub node: &'a str,
    /// Its node's zone; empty where it has none.
    pub zone: &'a str,
}

impl<'a> Proxy<'a> {
    /// The kube-proxy of the node with this name.
    pub fn of(view: &'a ClusterView, node: &'a str, mode: ProxyMode) -> Self {
        let zone = view.node(node).and_then(|own| own.zone.as_deref());
        Self { mode, index: view.index(node), node, zone: zone.unwrap_or_default() }
    }

    fn is_local(&self, endpoint: &Endpoint) -> bool {
        endpoint.is_local_to(self.index, self.node)
    }
}

/// A list of endpoints that kube-proxy makes: for one port of a Service, in one family, under one policy.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The Service.
    pub service: &'a Service,
    /// Index into its ports.
    pub port: usize,
    /// Family of the virtual address.
    pub family: Family,
    /// The policy that applies to the virtual address: a cluster IP's is the internal one, any other's the external one.
    pub policy: TrafficPolicy,
}

impl Target<'_> {
    /// The sockets where these endpoints take the traffic, sorted, to compare kube-proxy's tables with.
    pub fn sockets(&self, endpoints: &[&Endpoint]) -> Vec<SocketAddr> {
        let mut sockets: Vec<SocketAddr> =
            endpoints.iter().filter_map(|endpoint| self.service.socket(self.port, endpoint)).collect();
        sockets.sort_unstable();
        sockets
    }
}

/// The endpoints to which kube-proxy sends traffic for `target`, in the order of their addresses; none where it rejects or
/// drops. `left` says which endpoints there are: hints and fallbacks are judged by these alone.
///
/// `CategorizeEndpoints` in topology.go; in IPVS mode, `syncEndpoint` in ipvs/proxier.go chooses between its two lists.
pub fn usable<'a>(
    target: &Target<'a>,
    proxy: &Proxy<'_>,
    left: impl Fn(&Endpoint) -> bool,
) -> Vec<&'a Endpoint> {
    let Target { service, port, family, policy } = *target;
    let Some(service_port) = service.ports.get(port).filter(|_| service.proxied(family)) else {
        return Vec::new();
    };
    let is_there = |endpoint: &&Endpoint| {
        Family::of(endpoint.address) == family && service.target(port, endpoint).is_some() && left(endpoint)
    };
    let there: Vec<&Endpoint> = service.endpoints.iter().filter(is_there).collect();
    if policy == TrafficPolicy::Cluster {
        return cluster(&there, proxy);
    }
    let local = ready_else_ending(there.iter().copied().filter(|endpoint| proxy.is_local(endpoint)));
    // Only IPVS falls back (kubernetes PR 97081), and only to a list that kube-proxy makes at all: `UsesClusterEndpoints` in
    // serviceport.go.
    let uses_cluster = service.internal == TrafficPolicy::Cluster || service.external(service_port, family);
    if local.is_empty() && proxy.mode == ProxyMode::Ipvs && uses_cluster {
        return cluster(&there, proxy);
    }
    local
}

/// Cluster policy: ready endpoints as far as topology allows; else terminating endpoints that still serve, wherever they are.
fn cluster<'a>(there: &[&'a Endpoint], proxy: &Proxy<'_>) -> Vec<&'a Endpoint> {
    let topology = Topology::from_hints(there, proxy);
    // The topology never excludes all ready endpoints.
    let is_allowed = |endpoint: &&Endpoint| !endpoint.ready || topology.allows(endpoint, proxy);
    ready_else_ending(there.iter().copied().filter(is_allowed))
}

/// The ready endpoints; where there is none, those that are serving and terminating.
fn ready_else_ending<'a>(endpoints: impl Iterator<Item = &'a Endpoint> + Clone) -> Vec<&'a Endpoint> {
    let ready: Vec<&Endpoint> = endpoints.clone().filter(|endpoint| endpoint.ready).collect();
    if ready.is_empty() {
        endpoints.filter(|endpoint| endpoint.serving && endpoint.terminating).collect()
    } else {
        ready
    }
}

/// `topologyModeFromHints` in topology.go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Topology {
    Everywhere,
    SameNode,
    SameZone,
}

impl Topology {
    /// A kind of hint counts if every ready endpoint has one and one of them is meant for this node, or its zone.
    fn from_hints(there: &[&Endpoint], proxy: &Proxy<'_>) -> Self {
        let ready = || there.iter().filter(|endpoint| endpoint.ready);
        let for_all = |nodes: bool| {
            let has = |hints: &Hints| if nodes { !hints.nodes.is_empty() } else { !hints.zones.is_empty() };
            ready().all(|endpoint| endpoint.hints().is_some_and(has))
        };
        let for_us = |topology: Self| ready().any(|endpoint| topology.allows(endpoint, proxy));
        if for_us(Self::SameNode) && for_all(true) {
            Self::SameNode
        } else if for_us(Self::SameZone) && for_all(false) {
            Self::SameZone
        } else {
            Self::Everywhere
        }
    }

    /// `availableForTopology`.
    fn allows(self, endpoint: &Endpoint, proxy: &Proxy<'_>) -> bool {
        let hints = endpoint.hints();
        match self {
            Self::Everywhere => true,
            Self::SameNode => hints.is_some_and(|hints| hints.nodes.contains(proxy.node)),
            Self::SameZone => hints.is_some_and(|hints| hints.zones.contains(proxy.zone)),
        }
    }
}

/// Every list of endpoints that kube-proxy makes for a Service.
pub fn targets(service: &Service, mode: ProxyMode) -> impl Iterator<Item = Target<'_>> {
    let families = Family::ALL.into_iter().filter(|family| service.proxied(*family));
    families.flat_map(move |family| {
        (0..service.ports.len()).flat_map(move |port| {
            policies(service, port, family, mode).into_iter().map(move |policy| Target {
                service,
                port,
                family,
                policy,
            })
        })
    })
}

fn policies(service: &Service, port: usize, family: Family, mode: ProxyMode) -> BTreeSet<TrafficPolicy> {
    let mut policies = BTreeSet::from([service.internal]);
    if service.external(&service.ports[port], family) {
        policies.insert(service.external);
        // Traffic of pods and of the node itself to an external address uses all endpoints, whatever the policy: the
        // short circuit of the "external destinations" chain in iptables/proxier.go and nftables/proxier.go.
        if mode != ProxyMode::Ipvs {
            policies.insert(TrafficPolicy::Cluster);
        }
    }
    policies
}
