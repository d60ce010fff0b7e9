//! Which Service a translated packet was for, and whether kube-proxy may pick something else for it. Pure.
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::SocketAddr,
};

use foldhash::fast::RandomState;

use crate::{
    cluster::{ClusterView, Endpoint, Family, NodeSet, Protocol, TrafficPolicy},
    conntrack::Flow,
    plan::{Place, Proxy, Target, VirtualAddresses, usable},
    proxy,
};

/// What kube-proxy may pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Endpoints on flagged nodes among them.
    pub flagged: usize,
    /// Endpoints that it sends traffic to.
    pub usable: usize,
    /// The endpoint at which the Service keeps the client, if it does: that has to be forgotten first.
    pub kept_at: Option<proxy::Endpoint<'a>>,
    /// The backend that it went to is an endpoint of the Service, and not on a flagged node.
    pub is_free: bool,
}

impl Choice<'_> {
    /// All of them are on flagged nodes, so that the cut lets through what goes there: the packet met it a moment before the last of them was flagged.
    pub const fn all_flagged(&self) -> bool {
        self.flagged == self.usable
    }
}

/// Why a packet is not balanced anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoChoice {
    /// It was sent to the backend itself.
    Untranslated,
    /// No Service has the address that it was sent to.
    Unknown,
    /// There is nothing that kube-proxy may pick.
    NothingElse,
}

/// Ports of Services that are remembered at most.
const MOST: usize = 1_024;

/// What kube-proxy may pick for ports of Services, worked out once for each: a packet costs the same however many endpoints its Service has. Made anew with the view, the flags and
/// kube-proxy's mode.
#[derive(Debug, Default)]
pub struct Choices(HashMap<(Place, Family), Picks, RandomState>);

/// Of one port of a Service.
#[derive(Debug)]
struct Picks {
    /// Under the address' policy, and where kube-proxy takes no notice of it.
    lists: [List; 2],
    /// Where endpoints take the traffic, usable or not, and whether that is on a flagged node.
    all: HashMap<SocketAddr, bool, RandomState>,
}

#[derive(Debug)]
struct List {
    sockets: HashSet<SocketAddr, RandomState>,
    flagged: usize,
    usable: usize,
}

impl Picks {
    fn new(
        view: &ClusterView,
        proxy: &Proxy<'_>,
        place: Place,
        family: Family,
        flagged: &NodeSet,
    ) -> Option<Self> {
        let service = &**view.services.as_ref()?.get(place.service as usize)?;
        let port = place.port as usize;
        let is_flagged = |endpoint: &Endpoint| endpoint.node.is_some_and(|node| flagged.contains(node));
        let lists = [place.policy, TrafficPolicy::Cluster].map(|policy| {
            let endpoints = usable(&Target { service, port, family, policy }, proxy, |_| true);
            List {
                sockets: endpoints.iter().filter_map(|endpoint| service.socket(port, endpoint)).collect(),
                flagged: endpoints.iter().filter(|endpoint| is_flagged(endpoint)).count(),
                usable: endpoints.len(),
            }
        });
        let mut all = HashMap::default();
        for endpoint in &service.endpoints {
            if let Some(socket) = service.socket(port, endpoint) {
                // Where two endpoints have it, one that is not flagged is enough.
                let flagged = all.entry(socket).or_insert(true);
                *flagged &= is_flagged(endpoint);
            }
        }
        Some(Self { lists, all })
    }
}

impl Choices {
    /// What kube-proxy may pick for a flow that is begun anew, while `flagged` (nodes of the view) bear flags. `addresses` are
    /// those of `view`.
    ///
    /// # Errors
    /// [`NoChoice`].
    pub fn of<'a>(
        &mut self,
        addresses: &VirtualAddresses,
        view: &'a ClusterView,
        proxy: &Proxy<'_>,
        flow: &Flow,
        flagged: &NodeSet,
    ) -> Result<Choice<'a>, NoChoice> {
        if !flow.is_balanced() {
            return Err(NoChoice::Untranslated);
        }
        let protocol = Protocol::of(flow.orig.protocol).ok_or(NoChoice::Unknown)?;
        let address = SocketAddr::new(flow.orig.dst.into(), flow.orig.dst_port);
        let by_address = addresses.places.get(&(address, protocol));
        let by_port = || addresses.node_ports.get(&(address.port(), protocol));
        let place = *by_address.or_else(by_port).ok_or(NoChoice::Unknown)?;
        let service = view
            .services
            .as_ref()
            .and_then(|services| services.get(place.service as usize))
            .ok_or(NoChoice::Unknown)?;
        let family = Family::of(address.ip());
        if self.0.len() >= MOST && !self.0.contains_key(&(place, family)) {
            self.0.clear();
        }
        let picks = match self.0.entry((place, family)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(Picks::new(view, proxy, place, family, flagged).ok_or(NoChoice::Unknown)?)
            }
        };
        let backend = flow.backend();
        let known = picks.all.get(&backend);
        // A node port's address may be any: that the Service has such an endpoint says that it is a node's.
        if by_address.is_none() && known.is_none() {
            return Err(NoChoice::Unknown);
        }
        // Of traffic to an external address that comes from pods or the node itself kube-proxy takes no notice of the policy: which one
        // applied is seen by where it went.
        let went = |list: &&List| list.sockets.contains(&backend);
        let list = picks.lists.iter().find(went).unwrap_or(&picks.lists[0]);
        if list.usable == 0 {
            return Err(NoChoice::NothingElse);
        }
        let of = service.ports.get(place.port as usize).ok_or(NoChoice::Unknown)?;
        let kept_at = service.affinity.map(|_| proxy::Endpoint {
            service: &service.name,
            port: &of.name,
            protocol: of.protocol,
            socket: backend,
        });
        Ok(Choice { flagged: list.flagged, usable: list.usable, kept_at, is_free: known == Some(&false) })
    }
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
