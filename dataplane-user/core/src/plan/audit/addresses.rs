use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{
    cluster::{Endpoint, Family, Protocol, Service},
    plan::{Proxy, ServicePortRef, Target, VirtualAddresses, usable},
};

/// Every virtual address that kube-proxy serves on this node.
#[derive(Clone, Debug)]
pub struct Addresses<'a> {
    services: &'a [Arc<Service>],
    all: &'a VirtualAddresses,
    local: &'a BTreeSet<IpAddr>,
}

impl<'a> Addresses<'a> {
    /// The virtual addresses of these Services on a node with the addresses `local`. `all`: made of the same Services.
    pub fn new(services: &'a [Arc<Service>], all: &'a VirtualAddresses, local: &'a BTreeSet<IpAddr>) -> Self {
        Self { services, all, local }
    }

    /// Cluster IPs, external IPs and those of load balancers.
    pub(super) fn places(&self) -> impl Iterator<Item = (&(SocketAddr, Protocol), &ServicePortRef)> {
        self.all.places.iter().filter(|((address, _), place)| self.serves(**place, *address))
    }

    /// Node ports.
    pub(super) fn node_ports(&self) -> impl Iterator<Item = (&(u16, Protocol), &ServicePortRef)> {
        self.all.node_ports.iter()
    }

    fn serves(&self, place: ServicePortRef, address: SocketAddr) -> bool {
        self.service(place).proxied(Family::of(address.ip()))
    }

    /// Where an address and an IP protocol number lead, and whether to a node port. A node port has every address of the node.
    pub(super) fn find(&self, address: SocketAddr, protocol: u8) -> Option<(ServicePortRef, bool)> {
        let protocol = Protocol::of(protocol)?;
        let place = self.all.places.get(&(address, protocol));
        if let Some(place) = place.filter(|place| self.serves(**place, address)) {
            return Some((*place, false));
        }
        let place = self.all.node_ports.get(&(address.port(), protocol))?;
        let served = self.local.contains(&address.ip()) && self.serves(*place, address);
        served.then_some((*place, true))
    }

    pub(super) fn service(&self, place: ServicePortRef) -> &'a Service {
        &self.services[place.service as usize]
    }

    /// The name of a Service's port, for people.
    pub(super) fn name(&self, place: ServicePortRef) -> String {
        let service = self.service(place);
        let port = &service.ports[place.port as usize];
        if port.name.is_empty() { service.name.clone() } else { format!("{}:{}", service.name, port.name) }
    }

    /// Where the kube-proxy of this node sends traffic for a place, in the order of addresses and ports.
    pub(super) fn wanted(
        &self,
        place: ServicePortRef,
        family: Family,
        proxy: &Proxy<'_>,
    ) -> Vec<(SocketAddr, &'a Endpoint)> {
        let service = self.service(place);
        let port = place.port as usize;
        let target = Target { service, port, family, policy: place.policy };
        let used = usable(&target, proxy, |_| true);
        let mut wanted: Vec<_> = used
            .into_iter()
            .filter_map(|endpoint| Some((service.socket(port, endpoint)?, endpoint)))
            .collect();
        wanted.sort_unstable_by_key(|(socket, _)| *socket);
        wanted
    }
}
