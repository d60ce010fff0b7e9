//! Ports that are exempt whenever their node is cut: ports of its backends that a Service names without a node, and ports of Services that are left out.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    cluster::{ClusterView, NodeIx, Service},
    plan::{ExemptFor, ExemptPort, Slot, Why, left_out},
};

/// Ports of a node, and for what each is exempt.
type Ports = Box<[(ExemptPort, ExemptFor)]>;

/// By node: the endpoints that have the address of one of its backends and are tied to no node, and the ports of Services that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Untied {
    /// The endpoints that are tied to no node, by their addresses: the indices of the Service and of the endpoint.
    by_address: Arc<HashMap<IpAddr, Vec<(u32, u32)>>>,
    /// The ports of Services that are left out.
    left_out: Arc<HashMap<NodeIx, Vec<(ExemptPort, ExemptFor)>>>,
    of: Arc<HashMap<Slot, Ports>>,
}

impl Untied {
    /// The untied ports of a view. `slots`: the place of each node, in the order of the view.
    pub(super) fn new(view: &ClusterView, slots: &[Option<Slot>]) -> Self {
        let mut by_address: HashMap<IpAddr, Vec<(u32, u32)>> = HashMap::new();
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            for (e, endpoint) in (0..).zip(&service.endpoints).filter(|(_, endpoint)| endpoint.node.is_none())
            {
                by_address.entry(endpoint.address).or_default().push((s, e));
            }
        }
        let mut left: HashMap<NodeIx, Vec<(ExemptPort, ExemptFor)>> = HashMap::new();
        for (port, reason) in left_out(view) {
            left.entry(port.node).or_default().push((port, reason));
        }
        let mut untied =
            Self { by_address: Arc::new(by_address), left_out: Arc::new(left), of: Arc::default() };
        if !untied.is_empty() {
            let nodes = view.indexed().zip(slots).filter_map(|((at, _), slot)| Some((at, (*slot)?)));
            let of = nodes.map(|(at, slot)| (slot, untied.ports(view, at)));
            untied.of = Arc::new(of.filter(|(_, ports)| !ports.is_empty()).collect());
        }
        untied
    }

    /// Follows to another view of the same nodes and Services, of which these changed. Returns the nodes that have other ports now.
    pub(super) fn follow(
        &mut self,
        before: &ClusterView,
        view: &ClusterView,
        nodes: &[NodeIx],
        services: &[u32],
        slots: &[Option<Slot>],
    ) -> Vec<Slot> {
        let has_any = |view: &ClusterView, position: &u32| {
            let service = view.services.as_ref().and_then(|services| services.get(*position as usize));
            service.is_some_and(|service| {
                service.mode.is_left_out() || service.endpoints.iter().any(|endpoint| endpoint.node.is_none())
            })
        };
        if services.iter().any(|position| has_any(before, position) || has_any(view, position)) {
            // Services with untied endpoints, and those that are left out, change seldom.
            let other = Self::new(view, slots);
            let slots: HashSet<Slot> = self.of.keys().chain(other.of.keys()).copied().collect();
            let mut differ: Vec<Slot> =
                slots.into_iter().filter(|slot| self.of(*slot) != other.of(*slot)).collect();
            differ.sort_unstable();
            *self = other;
            return differ;
        }
        if self.is_empty() {
            return Vec::new();
        }
        let mut differ = Vec::new();
        for (at, slot) in nodes.iter().filter_map(|at| Some((*at, (*slots.get(at.position())?)?))) {
            let ports = self.ports(view, at);
            if *self.of(slot) == *ports {
                continue;
            }
            differ.push(slot);
            let of = Arc::make_mut(&mut self.of);
            if ports.is_empty() {
                of.remove(&slot);
            } else {
                of.insert(slot, ports);
            }
        }
        differ
    }

    /// Whether no view's node can have any.
    fn is_empty(&self) -> bool {
        self.by_address.is_empty() && self.left_out.is_empty()
    }

    /// The ports of a node.
    pub(super) fn of(&self, slot: Slot) -> &[(ExemptPort, ExemptFor)] {
        self.of.get(&slot).map_or(&[][..], |ports| &ports[..])
    }

    fn ports(&self, view: &ClusterView, at: NodeIx) -> Ports {
        let backends = view.at(at).map_or(&[][..], |node| &node.backends);
        let addresses: HashSet<IpAddr> = backends.iter().map(|backend| backend.address).collect();
        let named = addresses.iter().filter_map(|address| self.by_address.get(address)).flatten();
        let mut ports = Vec::new();
        for (s, e) in named {
            let Some(service) = view.services.as_ref().and_then(|services| services.get(*s as usize)) else {
                continue;
            };
            ports.extend(ports_of(*s, service, *e, at));
        }
        ports.extend(self.left_out.get(&at).into_iter().flatten().copied());
        ports.sort_unstable();
        ports.into()
    }
}

fn ports_of(s: u32, service: &Service, e: u32, at: NodeIx) -> impl Iterator<Item = (ExemptPort, ExemptFor)> {
    let endpoint = service.endpoints.get(e as usize);
    (0..service.ports.len()).filter_map(move |port| {
        let reason = ExemptFor { service: s, port: port as u32, why: Why::Untied };
        Some((ExemptPort::of(service, port, endpoint?, Some(at))?, reason))
    })
}
