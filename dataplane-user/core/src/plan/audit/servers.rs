//! Compares IPVS with what kube-proxy in IPVS mode ought to have programmed (`syncProxyRules` and `syncEndpoint`, pkg/proxy/ipvs/proxier.go,
//! Kubernetes 1.36).
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use super::{Addresses, Cidr, Difference, Found, Grace, Kind, Mend, Subject};
use crate::{
    cluster::{Backends, ClusterView, Endpoint, Family, NodeSet, Protocol as Transport},
    ipvs::{Change, Destination, Protocol, ServiceKey},
    ledger::{Entry, Pair},
    plan::{Proxy, ServicePortRef, left_out},
};

/// What is known of the cluster, beside the tables.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// The cluster.
    pub view: &'a ClusterView,
    /// The kube-proxy of this node.
    pub proxy: Proxy<'a>,
    /// Flagged nodes that are to be drained.
    pub flagged: &'a NodeSet,
    /// The destinations that the drain changed.
    pub ledger: &'a BTreeMap<Pair, Entry>,
    /// Virtual addresses of others.
    pub excluded: &'a [Cidr],
}

/// Compares one virtual server after another.
#[derive(Debug)]
pub struct Servers<'a> {
    cluster: Cluster<'a>,
    addresses: &'a Addresses<'a>,
    /// Virtual addresses whose server was compared.
    seen: HashSet<(SocketAddr, Transport)>,
    /// Addresses of the node at which kube-proxy serves node ports: its configuration decides which (`nodePortAddresses`).
    node_addresses: BTreeSet<IpAddr>,
    flagged: Backends<()>,
}

impl<'a> Servers<'a> {
    /// A comparison that has seen no virtual server yet.
    pub fn new(cluster: Cluster<'a>, addresses: &'a Addresses<'a>) -> Self {
        let mut flagged = Backends::new();
        let nodes = cluster.flagged.iter().filter_map(|node| cluster.view.at(node));
        nodes.flat_map(|node| &node.backends).for_each(|backend| flagged.add(backend, ()));
        left_out(cluster.view).for_each(|(port, _)| flagged.spare(&port.backend()));
        let (seen, node_addresses) = Default::default();
        Self { cluster, addresses, seen, node_addresses, flagged }
    }

    /// Compares a virtual server and its destinations.
    pub fn look(&mut self, key: ServiceKey, found: &[Destination], out: &mut Found) {
        self.look_at_flagged(key, found, out);
        // kube-proxy makes no virtual servers by mark.
        let ServiceKey::Address { address, protocol } = key else { return };
        let number = u8::try_from(protocol.0).unwrap_or(0);
        let Some((place, node_port)) = self.addresses.find(address, number) else {
            if !self.cluster.excluded.iter().any(|cidr| cidr.contains(address.ip())) {
                out.add(Kind::ExtraService, || Difference {
                    kind: Kind::ExtraService,
                    subject: Subject::Server(key),
                    service: None,
                    detail: format!("no Service has this address; it has {} destinations", found.len()),
                    grace: Grace::Sync,
                    mend: None,
                });
            }
            return;
        };
        if node_port {
            self.node_addresses.insert(address.ip());
        }
        self.seen.extend(Transport::of(number).map(|transport| (address, transport)));
        let wanted = self.addresses.wanted(place, Family::of(address.ip()), &self.cluster.proxy);
        let is_flagged = |(socket, endpoint): &(SocketAddr, &Endpoint)| {
            self.is_flagged(endpoint) && !self.flagged.spares(&key, *socket)
        };
        let others = wanted.iter().any(|one| !is_flagged(one));
        for destination in found {
            let pair = Pair { service: key, destination: destination.address };
            match wanted.binary_search_by_key(&destination.address, |(socket, _)| *socket) {
                Err(_) => self.stale(pair, destination, place, protocol, out),
                // A destination on a flagged node is the drain's, as long as there are others.
                Ok(at) if others && is_flagged(&wanted[at]) => {}
                Ok(_) if destination.weight == 0 => self.stray(pair, destination, place, out),
                Ok(_) => {}
            }
        }
        let there: HashSet<SocketAddr> = found.iter().map(|destination| destination.address).collect();
        for one @ (socket, _) in &wanted {
            if !there.contains(socket) && !(others && is_flagged(one)) {
                self.missing(Pair { service: key, destination: *socket }, place, out);
            }
        }
    }

    /// To be called when all virtual servers were compared: finds those that are missing.
    pub fn finish(&self, out: &mut Found) {
        let mut missing: Vec<(SocketAddr, Transport, ServicePortRef)> = self
            .addresses
            .places()
            .filter(|(key, _)| !self.seen.contains(*key))
            .map(|((address, transport), place)| (*address, *transport, *place))
            .collect();
        for family in Family::ALL {
            let served: Vec<IpAddr> = self.node_ports_at(family);
            for ((port, transport), place) in self.addresses.node_ports() {
                if !self.addresses.service(*place).proxied(family) {
                    continue;
                }
                let all = served.iter().map(|ip| (SocketAddr::new(*ip, *port), *transport, *place));
                missing.extend(all.filter(|(address, ..)| !self.seen.contains(&(*address, *transport))));
            }
        }
        missing.sort_unstable_by_key(|(address, transport, _)| (*address, *transport));
        for (address, transport, place) in missing {
            let protocol = Protocol(transport.number().into());
            out.add(Kind::MissingService, || Difference {
                kind: Kind::MissingService,
                subject: Subject::Server(ServiceKey::Address { address, protocol }),
                service: Some(self.addresses.name(place)),
                detail: "no such virtual server".to_owned(),
                grace: Grace::Sync,
                mend: None,
            });
        }
    }

    /// The addresses of this family at which kube-proxy serves node ports: all that were seen; where none was, the node's own.
    fn node_ports_at(&self, family: Family) -> Vec<IpAddr> {
        let served: Vec<IpAddr> =
            self.node_addresses.iter().copied().filter(|ip| Family::of(*ip) == family).collect();
        if !served.is_empty() {
            return served;
        }
        let own = self.cluster.view.node(self.cluster.proxy.node).map(|node| &node.addresses);
        own.into_iter().flatten().copied().find(|ip| Family::of(*ip) == family).into_iter().collect()
    }

    /// Reports a destination that kube-proxy would not have there.
    fn stale(
        &self,
        pair: Pair,
        found: &Destination,
        place: ServicePortRef,
        protocol: Protocol,
        out: &mut Found,
    ) {
        let service = self.addresses.service(place);
        let port = place.port as usize;
        let listed =
            service.endpoints.iter().any(|endpoint| service.socket(port, endpoint) == Some(pair.destination));
        // `IsRsGracefulTerminationNeeded` (pkg/proxy/ipvs/util): UDP and SCTP go at once. Templates do not count (`deleteRsFunc`).
        let graceful = protocol == Protocol::TCP;
        let connections = found.active + found.inactive;
        let (grace, mend) = match (found.weight, connections) {
            (0, 1..) if graceful => (Grace::Draining, None),
            (0, _) if graceful => (Grace::Termination, Some(delete(&pair))),
            // The endpoint still runs, but nothing new is to go there: end it gently, as kube-proxy does.
            (1.., 1..) if graceful && listed => (Grace::Sync, Some(weigh(&pair, found, 0))),
            _ => (Grace::Sync, Some(delete(&pair))),
        };
        let is =
            if listed { "is an endpoint that is not to be used" } else { "is no endpoint of the Service" };
        out.add(Kind::StaleDestination, || Difference {
            kind: Kind::StaleDestination,
            subject: Subject::Pair(pair),
            service: Some(self.addresses.name(place)),
            detail: format!("{is}; weight {}, {connections} connections", found.weight),
            grace,
            mend: mend.filter(|_| !self.cluster.ledger.contains_key(&pair)).map(Mend::Ipvs),
        });
    }

    /// Reports a destination of weight 0 that kube-proxy would use.
    fn stray(&self, pair: Pair, found: &Destination, place: ServicePortRef, out: &mut Found) {
        let entry = self.cluster.ledger.get(&pair);
        if entry.is_some_and(|entry| self.is_out(&entry.node)) {
            return;
        }
        let connections = found.active + found.inactive;
        let detail = entry.map_or_else(
            || format!("weight 0, {connections} connections, and the endpoint is to be used"),
            |entry| format!("weight 0 for node {}, which is not flagged any more", entry.node),
        );
        // While it has connections kube-proxy may be draining it, and the view may not say so yet. kube-proxy waits until there are none and does not look at the
        // weight again (pkg/proxy/ipvs/graceful_termination.go): a weight that is raised would stay. Without connections, kube-proxy adds a deleted destination again
        // if it wants it.
        let mend = (entry.is_none() && connections == 0).then(|| Mend::Ipvs(delete(&pair)));
        out.add(Kind::StrayWeight, || Difference {
            kind: Kind::StrayWeight,
            subject: Subject::Pair(pair),
            service: Some(self.addresses.name(place)),
            detail,
            grace: Grace::Sync,
            mend,
        });
    }

    fn missing(&self, pair: Pair, place: ServicePortRef, out: &mut Found) {
        let entry = self.cluster.ledger.get(&pair);
        if entry.is_some_and(|entry| self.is_out(&entry.node)) {
            return;
        }
        let new = || Change::NewDestination(pair.service, Destination::new(pair.destination, 1));
        let mend = entry.is_none().then(|| Mend::Ipvs(new()));
        out.add(Kind::MissingDestination, || Difference {
            kind: Kind::MissingDestination,
            subject: Subject::Pair(pair),
            service: Some(self.addresses.name(place)),
            detail: "the endpoint is to be used, and is no destination".to_owned(),
            grace: Grace::Sync,
            mend,
        });
    }

    /// Reports destinations that the drain ought to have drained: in any service that has other destinations.
    fn look_at_flagged(&self, key: ServiceKey, found: &[Destination], out: &mut Found) {
        for destination in self.on_flagged(key, found) {
            let connections = destination.active + destination.inactive;
            // Templates alone are the affinity part's matter.
            if destination.weight == 0 && connections == 0 {
                continue;
            }
            let pair = Pair { service: key, destination: destination.address };
            out.add(Kind::FlaggedDestination, || Difference {
                kind: Kind::FlaggedDestination,
                subject: Subject::Pair(pair),
                service: None,
                detail: format!(
                    "on a flagged node; weight {}, {connections} connections, {} templates",
                    destination.weight, destination.persistent
                ),
                grace: Grace::Sync,
                mend: None,
            });
        }
    }

    /// Reports persistence templates of a virtual server, by which IPVS keeps clients; they go with their destinations.
    pub fn look_at_templates(&self, key: ServiceKey, found: &[Destination], out: &mut Found) {
        for destination in self.on_flagged(key, found).filter(|destination| destination.persistent > 0) {
            out.add(Kind::FlaggedAffinity, || Difference {
                kind: Kind::FlaggedAffinity,
                subject: Subject::Pair(Pair { service: key, destination: destination.address }),
                service: None,
                detail: format!(
                    "on a flagged node; weight {}, {} templates",
                    destination.weight, destination.persistent
                ),
                grace: Grace::Sync,
                mend: None,
            });
        }
    }

    /// The destinations on flagged nodes; none where the virtual server has no other destination with weight.
    fn on_flagged<'d>(
        &self,
        key: ServiceKey,
        found: &'d [Destination],
    ) -> impl Iterator<Item = &'d Destination> {
        let on_flagged =
            move |destination: &Destination| self.flagged.of_destination(&key, destination.address).is_some();
        let has_others = !self.flagged.is_empty()
            && found.iter().any(|destination| destination.weight > 0 && !on_flagged(destination));
        found.iter().filter(move |destination| has_others && on_flagged(destination))
    }

    fn is_flagged(&self, endpoint: &Endpoint) -> bool {
        endpoint.node.is_some_and(|node| self.cluster.flagged.contains(node))
    }

    /// Whether the node of this name is to be drained.
    fn is_out(&self, node: &str) -> bool {
        self.cluster.view.index(node).is_some_and(|node| self.cluster.flagged.contains(node))
    }
}

fn delete(pair: &Pair) -> Change {
    Change::DeleteDestination(pair.service, pair.destination)
}

fn weigh(pair: &Pair, found: &Destination, weight: u32) -> Change {
    Change::SetDestination(pair.service, Destination { weight, ..found.clone() })
}
