//! Which Service a translated packet was for, and whether kube-proxy may pick another endpoint for it. Pure.
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::SocketAddr,
};

use foldhash::fast::RandomState;

use crate::{
    cluster::{ClusterView, Endpoint, Family, NodeSet, Protocol, TrafficPolicy},
    conntrack::Flow,
    plan::{Proxy, ServicePortRef, Target, VirtualAddresses, usable},
    proxy,
};

/// The endpoints that kube-proxy may pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// How many of the usable endpoints are on flagged nodes.
    pub flagged: usize,
    /// How many endpoints kube-proxy sends traffic to.
    pub usable: usize,
    /// The endpoint to which the client sticks, where the Service has affinity: kube-proxy has to forget the client there first.
    pub sticky_endpoint: Option<proxy::Endpoint<'a>>,
    /// Whether the packet's backend is an endpoint of the Service that is not on a flagged node.
    pub is_free: bool,
}

impl Choice<'_> {
    /// Whether all endpoints are on flagged nodes. Then they are exempt, and the packet met the cut a moment before the last node was flagged.
    pub const fn all_flagged(&self) -> bool {
        self.flagged == self.usable
    }
}

/// Why a packet is not balanced anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoChoice {
    /// The packet was sent to the backend itself.
    Untranslated,
    /// No Service has the address to which the packet was sent.
    Unknown,
    /// There is no endpoint that kube-proxy may pick.
    NothingElse,
}

/// Ports of Services that are remembered at most.
const MOST: usize = 1_024;

/// The endpoints that kube-proxy may pick for ports of Services, worked out once for each port: a packet costs the same however many endpoints its Service has.
/// Made anew when the view, the flags or kube-proxy's mode change.
#[derive(Debug, Default)]
pub struct Choices(HashMap<(ServicePortRef, Family), Picks, RandomState>);

/// The choices for one port of a Service.
#[derive(Debug)]
struct Picks {
    /// The endpoints under the address' policy, and those where kube-proxy ignores the policy.
    lists: [List; 2],
    /// The sockets where endpoints take the traffic, usable or not, and whether each is on a flagged node.
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
        place: ServicePortRef,
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
                // Where two endpoints have the socket, one on a node that is not flagged is enough.
                let flagged = all.entry(socket).or_insert(true);
                *flagged &= is_flagged(endpoint);
            }
        }
        Some(Self { lists, all })
    }
}

impl Choices {
    /// The endpoints that kube-proxy may pick for a flow that is begun anew, while the nodes `flagged` of the view bear flags.
    /// `addresses` are those of `view`.
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
        // A node port may have any address: the address is a node's if the Service has the backend as an endpoint.
        if by_address.is_none() && known.is_none() {
            return Err(NoChoice::Unknown);
        }
        // For traffic from pods or the node itself to an external address kube-proxy ignores the policy: which list applied shows by
        // where the packet went.
        let went = |list: &&List| list.sockets.contains(&backend);
        let list = picks.lists.iter().find(went).unwrap_or(&picks.lists[0]);
        if list.usable == 0 {
            return Err(NoChoice::NothingElse);
        }
        let of = service.ports.get(place.port as usize).ok_or(NoChoice::Unknown)?;
        let sticky_endpoint = service.affinity.map(|_| proxy::Endpoint {
            service: &service.name,
            port: &of.name,
            protocol: of.protocol,
            socket: backend,
        });
        Ok(Choice {
            flagged: list.flagged,
            usable: list.usable,
            sticky_endpoint,
            is_free: known == Some(&false),
        })
    }
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
