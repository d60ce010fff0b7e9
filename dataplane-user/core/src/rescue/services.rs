//! Which Service a translated packet was for, and whether kube-proxy may pick something else for it. Pure.
use std::net::SocketAddr;

use crate::{
    cluster::{ClusterView, Endpoint, Family, NodeSet, Protocol, Service, TrafficPolicy},
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

/// What kube-proxy may pick for a flow that is begun anew, while `flagged` (nodes of the view) bear flags. `addresses` are
/// those of `view`.
///
/// # Errors
/// [`NoChoice`].
pub fn choice<'a>(
    addresses: &VirtualAddresses,
    view: &'a ClusterView,
    proxy: &Proxy<'_>,
    flow: &Flow,
    flagged: &NodeSet,
) -> Result<Choice<'a>, NoChoice> {
    if !flow.is_balanced() {
        return Err(NoChoice::Untranslated);
    }
    let (place, service) = find(addresses, view, flow).ok_or(NoChoice::Unknown)?;
    let port = place.port as usize;
    let family = Family::of(flow.orig.dst);
    // Of traffic to an external address that comes from pods or the node itself kube-proxy takes no notice of the policy: which one
    // applied is seen by where it went.
    let lists = [place.policy, TrafficPolicy::Cluster]
        .map(|policy| usable(&Target { service, port, family, policy }, proxy, |_| true));
    let backend = flow.backend();
    let went = |list: &&Vec<&Endpoint>| list.iter().any(|e| service.socket(port, e) == Some(backend));
    let list = lists.iter().find(went).unwrap_or(&lists[0]);
    let is_flagged = |e: &Endpoint| e.node.is_some_and(|node| flagged.contains(node));
    let on_flagged = list.iter().filter(|e| is_flagged(e)).count();
    if list.is_empty() {
        return Err(NoChoice::NothingElse);
    }
    let of = &service.ports[port];
    let kept_at = service.affinity.map(|_| proxy::Endpoint {
        service: &service.name,
        port: &of.name,
        protocol: of.protocol,
        socket: backend,
    });
    let is_free =
        service.endpoints.iter().any(|e| service.socket(port, e) == Some(backend) && !is_flagged(e));
    Ok(Choice { flagged: on_flagged, usable: list.len(), kept_at, is_free })
}

fn find<'a>(
    addresses: &VirtualAddresses,
    view: &'a ClusterView,
    flow: &Flow,
) -> Option<(Place, &'a Service)> {
    let protocol = Protocol::of(flow.orig.protocol)?;
    let service = |place: Place| Some((place, &**view.services.as_ref()?.get(place.service as usize)?));
    let key = (SocketAddr::new(flow.orig.dst.into(), flow.orig.dst_port), protocol);
    if let Some(place) = addresses.places.get(&key) {
        return service(*place);
    }
    // The address may be any: that the Service has such an endpoint says that it is a node's.
    let (place, found) = service(*addresses.node_ports.get(&(flow.orig.dst_port, protocol))?)?;
    let backend: SocketAddr = flow.backend();
    let ours = found.endpoints.iter().any(|e| found.socket(place.port as usize, e) == Some(backend));
    ours.then_some((place, found))
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
