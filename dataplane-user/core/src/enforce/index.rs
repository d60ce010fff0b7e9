//! Which endpoints of each Service may be used: by kube-proxy on this node, or by the clients of a headless Service. The index is of one view and does
//! not depend on which nodes are cut. Views that follow each other share what did not change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{named::Named, untied::Untied};
use crate::{
    cluster::{Changed, ClusterView, Endpoint, Service, TrafficPolicy},
    list::List,
    plan::{At, ExemptFor, ExemptPort, Proxy, Slot, Why, published, targets, usable},
    proxy::Mode as ProxyMode,
};

/// All endpoints that traffic to one port of a Service may use under one policy. Where all of them are on nodes that are cut, the
/// Service would be left with nothing: then these ports are exempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// For what the ports are exempt then.
    pub reason: ExemptFor,
    service: Arc<Service>,
    /// Which endpoints may be used, by their positions in the Service; `None` for all of them, the usual case. The view has the endpoints.
    which: Option<Box<[u32]>>,
}

impl Target {
    /// The ports that may be used, in the order of the Service's endpoints.
    pub fn usable(&self) -> impl Iterator<Item = ExemptPort> + '_ {
        let endpoints = &self.service.endpoints[..];
        let all = if self.which.is_none() { endpoints } else { &[] };
        let some = self.which.iter().flat_map(|which| which.iter());
        let some = some.filter_map(|at| endpoints.get(*at as usize));
        let port = self.reason.port as usize;
        all.iter()
            .chain(some)
            .filter_map(move |endpoint| ExemptPort::of(&self.service, port, endpoint, endpoint.node))
    }

    /// How many ports may be used.
    pub(super) fn count(&self) -> usize {
        self.which.as_ref().map_or(self.service.endpoints.len(), |which| which.len())
    }
}

/// The targets of a Service that can become exempt.
#[derive(Clone, Debug, Default)]
struct Targets {
    /// The number of the first target. The others follow.
    first: u32,
    /// The targets; `None` where there is none.
    all: Option<Arc<[Target]>>,
}

impl Targets {
    fn all(&self) -> &[Target] {
        self.all.as_deref().unwrap_or_default()
    }
}

/// A node's part of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    service: u32,
    /// The target's position among those of the Service.
    target: u32,
    /// How many of the target's usable ports are on the node.
    count: u32,
}

/// Nodes' parts of targets.
type Parts = BTreeMap<Slot, Vec<Part>>;

/// All targets of a view that can become exempt, and those of each node.
#[derive(Clone, Debug, Default)]
pub struct ExemptIndex {
    /// By the view's position of a node, its place.
    slots: Arc<[Option<Slot>]>,
    /// By the Service's index.
    services: List<Targets>,
    /// How many targets there are.
    targets: u32,
    /// By a target's number, how many ports it may use: what is left of it while no node is cut. Some numbers belong to no target any more.
    sizes: Vec<u32>,
    /// By the place of a node: its generation, and its parts of targets.
    parts: List<Option<(u32, Arc<[Part]>)>>,
    untied: Untied,
    named: Named,
    /// How kube-proxy forwards.
    mode: Option<ProxyMode>,
}

/// What differs between an index and that of an earlier view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Services, by their index.
    pub services: Vec<u32>,
    /// Nodes with other untied ports: ports that a Service names without a node.
    pub untied: Vec<Slot>,
}

impl Reindexed {
    /// What differs by either.
    pub(super) fn with(&self, other: &Self) -> Self {
        let services: BTreeSet<u32> = self.services.iter().chain(&other.services).copied().collect();
        let untied: BTreeSet<Slot> = self.untied.iter().chain(&other.untied).copied().collect();
        Self { services: services.into_iter().collect(), untied: untied.into_iter().collect() }
    }
}

impl ExemptIndex {
    /// The index for the kube-proxy of `own_node`. `mode`: how it forwards; where that is not known, the index has what any of the three
    /// modes would need. `slots`: the place of each node, in the order of the view.
    pub fn new(
        view: &ClusterView,
        own_node: &str,
        mode: Option<ProxyMode>,
        slots: Arc<[Option<Slot>]>,
    ) -> Self {
        let proxy = Proxy::of(view, own_node, mode.unwrap_or(ProxyMode::Nftables));
        let mut index = Self { slots, mode, ..Self::default() };
        let mut parts = Parts::new();
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            index.services.push(Targets::default());
            index.put(s, targets_of(s, service, &proxy, &index.slots), &mut parts);
        }
        for (slot, parts) in parts {
            index.set_parts(slot, parts);
        }
        index.untied = Untied::new(view, &index.slots);
        index.named = Named::new(view);
        index
    }

    /// The index of the view that follows on this one's (`before`). `None` where the index must be made anew: there are other nodes or Services, or kube-proxy
    /// forwards otherwise.
    pub fn follow(
        &self,
        before: &ClusterView,
        view: &ClusterView,
        changed: &Changed,
        own_node: &str,
        mode: Option<ProxyMode>,
    ) -> Option<(Self, Reindexed)> {
        let nodes = changed.nodes.as_ref()?;
        let services = changed.services.as_ref()?;
        let proxy = Proxy::of(view, own_node, mode.unwrap_or(ProxyMode::Nftables));
        let was = Proxy::of(before, own_node, proxy.mode);
        // Numbers that belong to no target cost memory: with too many, the index is made anew.
        let sparse = self.sizes.len() > 2 * self.targets as usize + 1024;
        if sparse || mode != self.mode || (was.index, was.zone) != (proxy.index, proxy.zone) {
            return None;
        }
        let mut index = self.clone();
        // The parts that nodes gain, and the Services whose old parts they lose.
        let mut gained = Parts::new();
        let mut lost: BTreeMap<Slot, BTreeSet<u32>> = BTreeMap::new();
        for &s in services {
            let service = view.services.as_ref()?.get(s as usize)?;
            let places = index.services.get(s as usize)?.all().iter().flat_map(Target::usable);
            for slot in places.filter_map(|port| self.slot(&port)) {
                lost.entry(slot).or_default().insert(s);
            }
            index.put(s, targets_of(s, service, &proxy, &index.slots), &mut gained);
        }
        let touched: BTreeSet<Slot> = lost.keys().chain(gained.keys()).copied().collect();
        for slot in touched {
            let lost = lost.get(&slot);
            let stays = |part: &&Part| !lost.is_some_and(|lost| lost.contains(&part.service));
            let mut parts: Vec<Part> = self.parts_of(slot).iter().filter(stays).copied().collect();
            parts.extend(gained.remove(&slot).into_iter().flatten());
            parts.sort_unstable();
            index.set_parts(slot, parts);
        }
        let untied = index.untied.follow(before, view, nodes, services, &index.slots);
        index.named.follow(view, services);
        Some((index, Reindexed { services: services.clone(), untied }))
    }

    /// Replaces the targets of a Service.
    fn put(&mut self, s: u32, all: Vec<Target>, parts: &mut Parts) {
        for (at, target) in (0..).zip(&all) {
            let mut counts: BTreeMap<Slot, u32> = BTreeMap::new();
            for slot in target.usable().filter_map(|port| self.slot(&port)) {
                *counts.entry(slot).or_default() += 1;
            }
            for (slot, count) in counts {
                parts.entry(slot).or_default().push(Part { service: s, target: at, count });
            }
        }
        let count = all.len() as u32;
        let Some(targets) = self.services.get_mut(s as usize) else { return };
        let before = targets.all().len() as u32;
        if count > before {
            targets.first = self.sizes.len() as u32;
            self.sizes.resize(self.sizes.len() + all.len(), 0);
        }
        for (size, target) in self.sizes.iter_mut().skip(targets.first as usize).zip(&all) {
            *size = target.count() as u32;
        }
        targets.all = (count > 0).then(|| all.into());
        self.targets = self.targets + count - before;
    }

    fn set_parts(&mut self, slot: Slot, parts: Vec<Part>) {
        while self.parts.len() <= slot.index as usize {
            self.parts.push(None);
        }
        if let Some(there) = self.parts.get_mut(slot.index as usize) {
            *there = (!parts.is_empty()).then(|| (slot.generation, parts.into()));
        }
    }

    fn parts_of(&self, slot: Slot) -> &[Part] {
        match self.parts.get(slot.index as usize) {
            Some(Some((generation, parts))) if *generation == slot.generation => parts,
            _ => &[],
        }
    }

    /// By the view's position of a node, its place.
    pub(super) fn slots(&self) -> &Arc<[Option<Slot>]> {
        &self.slots
    }

    /// The place of the node that a port is on.
    pub fn slot(&self, port: &ExemptPort) -> Option<Slot> {
        *self.slots.get(port.node.position())?
    }

    /// By a target's number, how many ports it may use. Some numbers belong to no target any more.
    pub(super) fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// All targets with their numbers.
    pub fn targets(&self) -> impl Iterator<Item = (u32, &Target)> {
        self.services.iter().flat_map(|targets| (targets.first..).zip(targets.all()))
    }

    /// The targets of a Service, by its index, with their numbers.
    pub(crate) fn targets_of_service(&self, service: u32) -> impl Iterator<Item = (u32, &Target)> {
        self.services
            .get(service as usize)
            .into_iter()
            .flat_map(|targets| (targets.first..).zip(targets.all()))
    }

    /// A node's targets with their numbers, and how many of their usable ports are on it.
    pub(crate) fn targets_of(&self, slot: Slot) -> impl Iterator<Item = (u32, u32, &Target)> {
        self.parts_of(slot).iter().filter_map(|part| {
            let targets = self.services.get(part.service as usize)?;
            let target = targets.all().get(part.target as usize)?;
            Some((targets.first + part.target, part.count, target))
        })
    }

    /// A node's ports that are exempt whenever it is cut.
    pub(crate) fn untied_of(&self, slot: Slot) -> &[(ExemptPort, ExemptFor)] {
        self.untied.of(slot)
    }

    /// The ports that Services name at an address, exempt or not.
    pub(crate) fn named(&self, at: At) -> BTreeSet<ExemptPort> {
        self.named.at(at)
    }

    /// The targets that may use a port for this reason.
    pub fn with(&self, port: &ExemptPort, reason: ExemptFor) -> impl Iterator<Item = &Target> {
        let targets = self.slot(port).into_iter().flat_map(|slot| self.targets_of(slot));
        targets
            .map(|(_, _, target)| target)
            .filter(move |target| target.reason == reason && target.usable().any(|usable| usable == *port))
    }
}

/// The targets of a Service that can become exempt.
fn targets_of(s: u32, service: &Arc<Service>, proxy: &Proxy<'_>, slots: &[Option<Slot>]) -> Vec<Target> {
    let by_proxy = targets(service, proxy.mode).map(|at| (at.port, at.policy, usable(&at, proxy, |_| true)));
    let by_dns = published(service).map(|(port, named)| (port, TrafficPolicy::Cluster, named));
    let all = by_proxy.chain(by_dns).filter_map(|(port, policy, endpoints)| {
        if !are_placed(service, &endpoints, port, slots) {
            return None;
        }
        let reason = ExemptFor { service: s, port: port as u32, why: Why::NothingElse(policy) };
        Some(Target { reason, which: which_of(service, &endpoints), service: Arc::clone(service) })
    });
    all.collect()
}

/// Whether there are endpoints, and each of them can be cut.
fn are_placed(service: &Service, endpoints: &[&Endpoint], port: usize, slots: &[Option<Slot>]) -> bool {
    let is_placed = |endpoint: &&Endpoint| {
        let slot = endpoint.node.and_then(|node| *slots.get(node.position())?);
        slot.is_some() && service.target(port, endpoint).is_some()
    };
    !endpoints.is_empty() && endpoints.iter().all(is_placed)
}

/// The positions of some endpoints, which are in the Service's order; `None` where these are all.
fn which_of(service: &Service, endpoints: &[&Endpoint]) -> Option<Box<[u32]>> {
    if endpoints.len() == service.endpoints.len() {
        return None;
    }
    let mut left = endpoints.iter().peekable();
    let all = (0..).zip(&service.endpoints);
    let some = all.filter(|(_, one)| left.next_if(|next| std::ptr::eq(**next, *one)).is_some());
    Some(some.map(|(at, _)| at).collect())
}
