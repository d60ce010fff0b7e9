//! Which Service a translated packet was for, and whether kube-proxy may pick something else for it. Pure.
use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
};

use thiserror::Error;

use crate::{
    cluster::{ClusterView, Endpoint, Family, Protocol, Service, TrafficPolicy},
    conntrack::Flow,
    plan::{Proxy, Target, usable},
    proxy,
};

/// Where a virtual address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Index in the view.
    service: u32,
    /// Index into its ports.
    port: u32,
    /// A cluster IP: the internal traffic policy applies.
    internal: bool,
}

/// Every virtual address of a view. kube-proxy serves node ports on any address of the node, so these are known by their port alone.
#[derive(Clone, Debug, Default)]
pub struct VirtualAddresses {
    places: HashMap<(IpAddr, u16, Protocol), Place>,
    node_ports: HashMap<(u16, Protocol), Place>,
}

/// What kube-proxy may pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Endpoints on flagged nodes among them.
    pub flagged: usize,
    /// Endpoints that it sends traffic to.
    pub usable: usize,
    /// The endpoint at which the Service keeps the client, if it does: that has to be forgotten first.
    pub kept_at: Option<proxy::Endpoint<'a>>,
}

/// Why a packet is not balanced anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoChoice {
    /// It was sent to the backend itself.
    #[error("not translated")]
    Untranslated,
    /// No Service has the address that it was sent to.
    #[error("no known Service")]
    Unknown,
    /// All that kube-proxy may pick is on flagged nodes.
    #[error("the Service has nothing else")]
    NothingElse,
}

impl VirtualAddresses {
    /// Of this view.
    pub fn new(view: &ClusterView) -> Self {
        let mut all = Self::default();
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            for (p, port) in (0..).zip(&service.ports) {
                let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
                let addresses = service.cluster_ips.iter().map(|ip| (ip, true));
                for (ip, internal) in addresses.chain(outside.map(|ip| (ip, false))) {
                    let place = Place { service: s, port: p, internal };
                    all.places.entry((*ip, port.port, port.protocol)).or_insert(place);
                }
                if let Some(node_port) = port.node_port {
                    let place = Place { service: s, port: p, internal: false };
                    all.node_ports.entry((node_port, port.protocol)).or_insert(place);
                }
            }
        }
        all
    }

    /// What kube-proxy may pick for a flow that is begun anew, while `flagged` (indexes into the view's nodes) bear flags. `view` is the one that
    /// this was made of.
    ///
    /// # Errors
    /// [`NoChoice`].
    pub fn choice<'a>(
        &self,
        view: &'a ClusterView,
        proxy: &Proxy<'_>,
        flow: &Flow,
        flagged: &BTreeSet<u32>,
    ) -> Result<Choice<'a>, NoChoice> {
        if !flow.is_balanced() {
            return Err(NoChoice::Untranslated);
        }
        let (place, service) = self.find(view, flow).ok_or(NoChoice::Unknown)?;
        let port = place.port as usize;
        let family = Family::of(flow.orig.dst.into());
        let policy = if place.internal { service.internal } else { service.external };
        // Of traffic to an external address that comes from pods or the node itself kube-proxy takes no notice of the policy: which one
        // applied is seen by where it went.
        let lists = [policy, TrafficPolicy::Cluster]
            .map(|policy| usable(&Target { service, port, family, policy }, proxy, |_| true));
        let backend = flow.backend();
        let went = |list: &&Vec<&Endpoint>| list.iter().any(|e| service.socket(port, e) == Some(backend));
        let list = lists.iter().find(went).unwrap_or(&lists[0]);
        let on_flagged = list.iter().filter(|e| e.node.is_some_and(|node| flagged.contains(&node))).count();
        if on_flagged == list.len() {
            return Err(NoChoice::NothingElse);
        }
        let of = &service.ports[port];
        let kept_at = service.affinity.map(|_| proxy::Endpoint {
            service: &service.name,
            port: &of.name,
            protocol: of.protocol,
            socket: backend,
        });
        Ok(Choice { flagged: on_flagged, usable: list.len(), kept_at })
    }

    fn find<'a>(&self, view: &'a ClusterView, flow: &Flow) -> Option<(Place, &'a Service)> {
        let protocol = match flow.orig.protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            _ => return None,
        };
        let service = |place: Place| Some((place, view.services.as_ref()?.get(place.service as usize)?));
        let key = (IpAddr::from(flow.orig.dst), flow.orig.dst_port, protocol);
        if let Some(place) = self.places.get(&key) {
            return service(*place);
        }
        // The address may be any: that the Service has such an endpoint says that it is a node's.
        let (place, found) = service(*self.node_ports.get(&(flow.orig.dst_port, protocol))?)?;
        let backend: SocketAddr = flow.backend();
        let ours = found.endpoints.iter().any(|e| found.socket(place.port as usize, e) == Some(backend));
        ours.then_some((place, found))
    }
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
