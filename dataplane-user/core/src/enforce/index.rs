//! What kube-proxy on this node may use of each Service: of a view, and independent of who is cut.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use crate::{
    cluster::{ClusterView, Endpoint, Service},
    plan::{KeptFor, KeptPort, Proxy, Slot, Why, targets, usable},
    proxy::Mode as ProxyMode,
};

/// All that traffic to one port of a Service may use under one policy. Where all of it is on nodes that are cut, a cut would
/// leave the Service with nothing: then these ports are exempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// For what it is exempt then.
    pub reason: KeptFor,
    /// What may be used.
    pub usable: Box<[KeptPort]>,
}

/// All targets of a view that can become exempt, and those of each node.
#[derive(Clone, Debug, Default)]
pub struct ExemptIndex {
    /// By the view's position of a node, its place.
    slots: Box<[Option<Slot>]>,
    targets: Box<[Target]>,
    /// Of each target, how many it may use.
    sizes: Box<[u32]>,
    /// Of each node, its targets and how many of what they may use it has.
    of: HashMap<Slot, Box<[(u32, u32)]>>,
    /// Of each node, ports that a Service names without a node: exempt whenever it is cut.
    untied: HashMap<Slot, Box<[(KeptPort, KeptFor)]>>,
}

impl ExemptIndex {
    /// For the kube-proxy of `own_node`. `mode`: how it forwards; where that is not known, what any of the three would need.
    /// `slots`: the place of each node, in the order of the view.
    pub fn new(
        view: &ClusterView,
        own_node: &str,
        mode: Option<ProxyMode>,
        slots: Box<[Option<Slot>]>,
    ) -> Self {
        let proxy = Proxy::of(view, own_node, mode.unwrap_or(ProxyMode::Nftables));
        let mut found = Vec::new();
        let mut of: HashMap<Slot, BTreeMap<u32, u32>> = HashMap::new();
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            for target in targets(service, proxy.mode) {
                let Some((usable, places)) =
                    all_placed(service, &usable(&target, &proxy, |_| true), target.port, &slots)
                else {
                    continue;
                };
                let at = found.len() as u32;
                for place in places {
                    *of.entry(place).or_default().entry(at).or_default() += 1;
                }
                let port = target.port as u32;
                let reason = KeptFor { service: s, port, why: Why::NothingElse(target.policy) };
                found.push(Target { reason, usable });
            }
        }
        let of = of.into_iter().map(|(slot, targets)| (slot, targets.into_iter().collect())).collect();
        let sizes = found.iter().map(|target| target.usable.len() as u32).collect();
        let untied = untied(view, &slots);
        Self { slots, targets: found.into(), sizes, of, untied }
    }

    /// The place of the node that a port is on.
    pub fn slot(&self, port: &KeptPort) -> Option<Slot> {
        *self.slots.get(port.node.position())?
    }

    /// Of each target, how many it may use.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// A target by its number.
    pub fn target(&self, number: u32) -> Option<&Target> {
        self.targets.get(number as usize)
    }

    /// A node's targets, and how many of what they may use it has.
    pub fn targets_of(&self, slot: Slot) -> &[(u32, u32)] {
        self.of.get(&slot).map_or(&[][..], |targets| &targets[..])
    }

    /// A node's ports that are exempt whenever it is cut.
    pub fn untied_of(&self, slot: Slot) -> &[(KeptPort, KeptFor)] {
        self.untied.get(&slot).map_or(&[][..], |ports| &ports[..])
    }

    /// The targets that may use a port for that reason.
    pub fn with(&self, port: &KeptPort, reason: KeptFor) -> impl Iterator<Item = &Target> {
        let of_node = self.slot(port).map_or(&[][..], |slot| self.targets_of(slot));
        let targets = of_node.iter().filter_map(|(number, _)| self.target(*number));
        targets.filter(move |target| target.reason == reason && target.usable.contains(port))
    }
}

/// The ports of endpoints and the places of their nodes; `None` where one of them can never be cut, or there is none.
fn all_placed(
    service: &Service,
    endpoints: &[&Endpoint],
    port: usize,
    slots: &[Option<Slot>],
) -> Option<(Box<[KeptPort]>, Vec<Slot>)> {
    if endpoints.is_empty() {
        return None;
    }
    let mut places = Vec::with_capacity(endpoints.len());
    let mut ports = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let node = endpoint.node?;
        places.push((*slots.get(node.position())?)?);
        ports.push(KeptPort::of(service, port, endpoint, Some(node))?);
    }
    Some((ports.into(), places))
}

/// Of each node, what has the address of one of its backends and is tied to no node.
fn untied(view: &ClusterView, slots: &[Option<Slot>]) -> HashMap<Slot, Box<[(KeptPort, KeptFor)]>> {
    let mut by_address: HashMap<IpAddr, Vec<(u32, &Service, &Endpoint)>> = HashMap::new();
    for (s, service) in (0..).zip(view.services.iter().flatten()) {
        for endpoint in service.endpoints.iter().filter(|endpoint| endpoint.node.is_none()) {
            by_address.entry(endpoint.address).or_default().push((s, service, endpoint));
        }
    }
    let mut of = HashMap::new();
    if by_address.is_empty() {
        return of;
    }
    for ((position, node), slot) in view.indexed().zip(slots) {
        let Some(slot) = slot else { continue };
        let addresses: HashSet<IpAddr> = node.backends.iter().map(|backend| backend.address).collect();
        let mut ports = Vec::new();
        for (s, service, endpoint) in addresses.iter().filter_map(|address| by_address.get(address)).flatten()
        {
            for port in 0..service.ports.len() {
                let reason = KeptFor { service: *s, port: port as u32, why: Why::Untied };
                let exempt = KeptPort::of(service, port, endpoint, Some(position));
                ports.extend(exempt.map(|exempt| (exempt, reason)));
            }
        }
        if !ports.is_empty() {
            ports.sort_unstable();
            of.insert(*slot, ports.into());
        }
    }
    of
}
