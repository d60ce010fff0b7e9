//! Exemptions worked out by looking at all Services of flagged nodes. Those worked out by counting ([`crate::enforce::ExemptPorts`]) are compared with these.
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use super::{ExemptFor, ExemptPort, Exemptions, Proxy, Why, published, targets, usable};
use crate::{
    cluster::{Backend, ClusterView, Endpoint, NodeIx, NodeSet, Scope, ServiceMode, TrafficPolicy},
    proxy::Mode as ProxyMode,
};

mod cases;

/// The Services of each node, so that a flag does not cost a walk over all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExemptIndex {
    /// For each node of the view, in its order, its Services.
    services: Vec<Vec<u32>>,
    /// For each node that has any, endpoints that are tied to no node but have the address of one of its backends: index of the
    /// Service, index of the endpoint.
    untied: HashMap<NodeIx, Vec<(u32, u32)>>,
}

impl ExemptIndex {
    /// The index of this view.
    pub(crate) fn new(view: &ClusterView) -> Self {
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

fn add(exemptions: &mut Exemptions, exempt: ExemptPort, reason: ExemptFor) {
    let first = exemptions.ports.entry(exempt).or_insert(reason);
    *first = (*first).min(reason);
}

/// The exemptions while `flagged` (nodes of the view) bear flags, for traffic that the kube-proxy of `own_node`
/// balances. Endpoints that are tied to no node count as live. `mode`: how kube-proxy forwards; where that is not known, those that
/// any of the three modes would need.
///
/// A set of flags has one answer, in whatever order they came.
pub(crate) fn exemptions(
    view: &ClusterView,
    index: &ExemptIndex,
    own_node: &str,
    mode: Option<ProxyMode>,
    flagged: &NodeSet,
) -> Exemptions {
    let mut exemptions = Exemptions::default();
    let Some(services) = &view.services else { return exemptions };
    // The exemptions for iptables and nftables include those for IPVS: a property test checks this.
    let proxy = Proxy::of(view, own_node, mode.unwrap_or(ProxyMode::Nftables));
    let touched: BTreeSet<u32> =
        flagged.iter().filter_map(|node| index.services.get(node.position())).flatten().copied().collect();
    for s in touched {
        let Some(service) = services.get(s as usize) else { continue };
        for target in targets(service, proxy.mode) {
            let usable = usable(&target, &proxy, |_| true);
            if usable.iter().all(|endpoint| endpoint.node.is_some_and(|node| flagged.contains(node))) {
                let reason =
                    ExemptFor { service: s, port: target.port as u32, why: Why::NothingElse(target.policy) };
                for endpoint in usable {
                    if let Some(exempt) = ExemptPort::of(service, target.port, endpoint, endpoint.node) {
                        add(&mut exemptions, exempt, reason);
                    }
                }
            }
        }
        let why = Why::NothingElse(TrafficPolicy::Cluster);
        for (port, named) in published(service) {
            if named.iter().all(|endpoint| endpoint.node.is_some_and(|node| flagged.contains(node))) {
                for exempt in named.iter().filter_map(|one| ExemptPort::of(service, port, one, one.node)) {
                    add(&mut exemptions, exempt, ExemptFor { service: s, port: port as u32, why });
                }
            }
        }
    }
    for node in flagged.iter() {
        for (s, e) in index.untied.get(&node).into_iter().flatten() {
            let Some(service) = services.get(*s as usize) else { continue };
            for port in 0..service.ports.len() {
                let endpoint = &service.endpoints[*e as usize];
                if let Some(exempt) = ExemptPort::of(service, port, endpoint, Some(node)) {
                    add(
                        &mut exemptions,
                        exempt,
                        ExemptFor { service: *s, port: port as u32, why: Why::Untied },
                    );
                }
            }
        }
    }
    for (s, service) in (0..).zip(services).filter(|(_, service)| service.mode != ServiceMode::Cut) {
        for endpoint in &service.endpoints {
            let node = endpoint.node.filter(|node| flagged.contains(*node));
            for port in 0..service.ports.len() {
                if let Some(exempt) = ExemptPort::of(service, port, endpoint, node) {
                    add(
                        &mut exemptions,
                        exempt,
                        ExemptFor { service: s, port: port as u32, why: Why::LeftOut },
                    );
                }
            }
        }
    }
    let ports: Vec<ExemptPort> = exemptions.ports.keys().copied().collect();
    for port in ports {
        let whole = Backend { address: port.address, scope: Scope::Address };
        if !view.at(port.node).is_some_and(|node| node.backends.contains(&whole)) {
            continue;
        }
        let cut = exemptions.whole.entry((port.node, port.address)).or_default();
        for service in services {
            let there =
                |endpoint: &&Endpoint| (endpoint.node, endpoint.address) == (Some(port.node), port.address);
            for endpoint in service.endpoints.iter().filter(there) {
                let named = (0..service.ports.len())
                    .filter_map(|p| ExemptPort::of(service, p, endpoint, endpoint.node));
                cut.extend(named.filter(|named| !exemptions.ports.contains_key(named)));
            }
        }
    }
    exemptions
}
