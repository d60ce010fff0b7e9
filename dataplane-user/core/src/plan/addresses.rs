//! Which port of which Service a virtual address leads to.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use foldhash::fast::RandomState;

use crate::cluster::{Family, Protocol, Service, TrafficPolicy};

/// A port of a Service, as one of its virtual addresses leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServicePortRef {
    /// Index among the Services.
    pub service: u32,
    /// Index into its ports.
    pub port: u32,
    /// Which endpoints may be used: a cluster IP's policy is the internal one, any other's the external one.
    pub policy: TrafficPolicy,
}

/// Every virtual address of Services, also those of families in which kube-proxy leaves them alone ([`Service::proxied`]). kube-proxy serves node
/// ports at addresses of the node, so node ports are known by their port alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualAddresses {
    /// Cluster IPs, external IPs and those of load balancers.
    pub places: HashMap<(SocketAddr, Protocol), ServicePortRef, RandomState>,
    /// Node ports.
    pub node_ports: HashMap<(u16, Protocol), ServicePortRef, RandomState>,
}

impl VirtualAddresses {
    /// The virtual addresses of these Services.
    pub fn new(services: &[Arc<Service>]) -> Self {
        let mut all = Self::default();
        let addresses = |service: &Service| {
            service.cluster_ips.len() + service.external_ips.len() + service.load_balancer_ips.len()
        };
        all.places.reserve(services.iter().map(|service| addresses(service) * service.ports.len()).sum());
        for (at, service) in (0..).zip(services) {
            let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
            let own = service.cluster_ips.iter().map(|ip| (*ip, service.internal));
            let addresses = own.chain(outside.map(|ip| (*ip, service.external)));
            for (port_at, port) in (0..).zip(&service.ports) {
                for (ip, policy) in addresses.clone() {
                    let place = ServicePortRef { service: at, port: port_at, policy };
                    all.places.entry((SocketAddr::new(ip, port.port), port.protocol)).or_insert(place);
                }
                if let Some(node_port) = port.node_port {
                    let place = ServicePortRef { service: at, port: port_at, policy: service.external };
                    all.node_ports.entry((node_port, port.protocol)).or_insert(place);
                }
            }
        }
        all
    }

    /// Whether all virtual addresses of two versions of a Service lead to the same ports under the same policies.
    pub(crate) fn are_same(one: &Service, other: &Service) -> bool {
        (one.internal, one.external) == (other.internal, other.external)
            && one.cluster_ips == other.cluster_ips
            && one.external_ips == other.external_ips
            && one.load_balancer_ips == other.load_balancer_ips
            && one.ports == other.ports
    }

    /// The Service's port for which kube-proxy serves the address, or its port as a node port. `services`: those of which this was made.
    pub fn at(
        &self,
        services: &[Arc<Service>],
        address: SocketAddr,
        protocol: Protocol,
    ) -> Option<ServicePortRef> {
        let serves = |place: &&ServicePortRef| {
            let service = services.get(place.service as usize);
            service.is_some_and(|service| service.proxied(Family::of(address.ip())))
        };
        let place = self.places.get(&(address, protocol)).filter(serves);
        place.or_else(|| self.node_ports.get(&(address.port(), protocol)).filter(serves)).copied()
    }
}
