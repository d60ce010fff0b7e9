use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
};

use crate::{
    cluster::{Endpoint, Family, Protocol, Service, TrafficPolicy},
    plan::{Proxy, Target, usable},
};

/// Which port of which Service a virtual address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Index among the Services.
    pub(super) service: u32,
    /// Index into its ports.
    pub(super) port: u32,
    /// Which endpoints may be used.
    pub(super) policy: TrafficPolicy,
}

/// Every virtual address that kube-proxy serves on this node.
#[derive(Clone, Debug)]
pub struct Addresses<'a> {
    services: &'a [Service],
    /// Cluster IPs, external IPs and those of load balancers.
    pub(super) places: HashMap<(SocketAddr, Protocol), Place>,
    pub(super) node_ports: HashMap<(u16, Protocol), Place>,
    local: &'a BTreeSet<IpAddr>,
}

impl<'a> Addresses<'a> {
    /// Of these Services, on a node with these addresses.
    pub fn new(services: &'a [Service], local: &'a BTreeSet<IpAddr>) -> Self {
        let mut this = Self { services, places: HashMap::new(), node_ports: HashMap::new(), local };
        for (s, service) in (0..).zip(services) {
            let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
            let own = service.cluster_ips.iter().map(|ip| (*ip, service.internal));
            let all: Vec<_> = own.chain(outside.map(|ip| (*ip, service.external))).collect();
            for (p, port) in (0..).zip(&service.ports) {
                for (ip, policy) in all.iter().filter(|(ip, _)| service.proxied(Family::of(*ip))) {
                    let place = Place { service: s, port: p, policy: *policy };
                    this.places.entry((SocketAddr::new(*ip, port.port), port.protocol)).or_insert(place);
                }
                if let Some(node_port) = port.node_port {
                    let place = Place { service: s, port: p, policy: service.external };
                    this.node_ports.insert((node_port, port.protocol), place);
                }
            }
        }
        this
    }

    /// Where an address and an IP protocol number lead. A node port has every address of the node.
    pub(super) fn find(&self, address: SocketAddr, protocol: u8) -> Option<(Place, bool)> {
        let protocol = protocol_of(protocol)?;
        if let Some(place) = self.places.get(&(address, protocol)) {
            return Some((*place, false));
        }
        let place = self.node_ports.get(&(address.port(), protocol))?;
        let served =
            self.local.contains(&address.ip()) && self.service(*place).proxied(Family::of(address.ip()));
        served.then_some((*place, true))
    }

    pub(super) fn service(&self, place: Place) -> &'a Service {
        &self.services[place.service as usize]
    }

    /// For people.
    pub(super) fn name(&self, place: Place) -> String {
        let service = self.service(place);
        let port = &service.ports[place.port as usize];
        if port.name.is_empty() { service.name.clone() } else { format!("{}:{}", service.name, port.name) }
    }

    /// Where the kube-proxy of this node sends traffic for it, in the order of addresses and ports.
    pub(super) fn wanted(
        &self,
        place: Place,
        family: Family,
        proxy: &Proxy<'_>,
    ) -> Vec<(SocketAddr, &'a Endpoint)> {
        let (service, port) = (self.service(place), place.port as usize);
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

/// The transport protocol with this number (IANA).
pub(super) fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| protocol.number() == number)
}
