mod affinity;
mod flows;
mod servers;
mod tracker;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use proptest::prelude::*;

use super::{Difference, Found};
use crate::{
    cluster::{ClusterView, Family, NodeSet, parse},
    ipvs::{Destination, Protocol, ServiceKey},
    plan::{Proxy, Target, usable},
    proxy::Mode,
};

/// The servers of a table, each with its destinations.
pub(super) type Table = BTreeMap<ServiceKey, Vec<Destination>>;

/// Node `a` (the own one) to `c`, in two zones.
pub(super) fn view(services: &str) -> ClusterView {
    let text = format!(
        "nodes:
  - {{ name: a, address: 10.0.0.1, zone: z1, backends: [{{ address: 10.1.1.9 }}, {{ address: 10.0.0.1, port: 9100, protocol: tcp, hostNetwork: true }}] }}
  - {{ name: b, address: 10.0.0.2, zone: z1 }}
  - {{ name: c, address: 10.0.0.3, zone: z2, backends: [{{ address: 10.0.0.3, port: 9100, protocol: tcp, hostNetwork: true }}] }}
{services}"
    );
    parse(&text, false).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Addresses of node `a`.
pub(super) fn local() -> BTreeSet<IpAddr> {
    ["127.0.0.1", "10.0.0.1", "192.168.7.1", "fd00:a::1"].iter().map(|text| text.parse().unwrap()).collect()
}

/// Where it serves node ports.
const NODE_ADDRESSES: [&str; 3] = ["10.0.0.1", "192.168.7.1", "fd00:a::1"];

pub(super) fn ipvs_proxy(view: &ClusterView) -> Proxy<'_> {
    Proxy::of(view, "a", Mode::Ipvs)
}

/// The nodes of these names.
pub(super) fn nodes(view: &ClusterView, names: &[&str]) -> NodeSet {
    names.iter().map(|name| view.index(name).unwrap()).collect()
}

pub(super) fn key(address: &str, protocol: Protocol) -> ServiceKey {
    ServiceKey::Address { address: address.parse().unwrap(), protocol }
}

/// What kube-proxy would program, word by word.
pub(super) fn programmed(view: &ClusterView) -> Table {
    let mut table = Table::new();
    for service in view.services.iter().flatten() {
        for (at, port) in service.ports.iter().enumerate() {
            let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
            let mut addresses: Vec<(IpAddr, u16, bool)> = outside.map(|ip| (*ip, port.port, false)).collect();
            addresses.extend(service.cluster_ips.iter().map(|ip| (*ip, port.port, true)));
            if let Some(node_port) = port.node_port {
                let all = NODE_ADDRESSES.iter().map(|text| (text.parse().unwrap(), node_port, false));
                addresses.extend(all);
            }
            for (ip, number, internal) in addresses {
                let family = Family::of(ip);
                if !service.cluster_ips.iter().any(|ip| Family::of(*ip) == family) {
                    continue;
                }
                let policy = if internal { service.internal } else { service.external };
                let target = Target { service, port: at, family, policy };
                let endpoints = target.sockets(&usable(&target, &ipvs_proxy(view), |_| true));
                let protocol = Protocol(port.protocol.number().into());
                let key = ServiceKey::Address { address: SocketAddr::new(ip, number), protocol };
                let destinations = endpoints.into_iter().map(|socket| Destination::new(socket, 1)).collect();
                table.insert(key, destinations);
            }
        }
    }
    table
}

/// Services of all shapes over pods of three nodes, both IP versions.
pub(super) fn any_view() -> impl Strategy<Value = ClusterView> {
    let state = prop::sample::select(
        &[
            "",
            ", ready: false",
            ", ready: false, terminating: true",
            ", ready: false, serving: false, terminating: true",
        ][..],
    );
    let endpoint = (0u8..4, 1u8..4, state, prop::option::of(1u8..3), any::<bool>());
    let outside =
        prop::sample::select(&["", "externalIPs: [192.0.2.X]", "loadBalancerIPs: ['fd00:1b::X']"][..]);
    let one = (
        prop::collection::vec(endpoint, 0..6),
        any::<(bool, bool, bool, bool)>(),
        outside,
        prop::sample::select(&["tcp", "udp", "sctp"][..]),
    );
    prop::collection::vec(one, 1..6).prop_map(|services| {
        let mut text = String::from("services:\n");
        for (n, (endpoints, (internal, external, dual, node_port), outside, protocol)) in (1u8..).zip(services) {
            let local = |local| if local { "Local" } else { "Cluster" };
            let ips = if dual { format!("10.96.0.{n}, 'fd00:96::{n}'") } else { format!("10.96.0.{n}") };
            let node_port = if node_port { format!(", nodePort: {}", 30_000 + u32::from(n)) } else { String::new() };
            let mut seen = BTreeSet::new();
            let endpoints: Vec<String> = endpoints
                .into_iter()
                .map(|(node, pod, state, zone, six)| (node, pod, state, zone, six && dual))
                .filter(|(node, pod, _, _, six)| seen.insert((*node, *pod, *six)))
                .map(|(node, pod, state, zone, six)| {
                    let address = if six { format!("'fd00:1:{node}::{pod}'") } else { format!("10.1.{node}.{pod}") };
                    let tied = match node {
                        0 => String::new(),
                        _ => format!(", node: {}", char::from(b'`' + node)),
                    };
                    let hints = zone.map_or(String::new(), |zone| format!(", hints: {{zones: [z{zone}]}}"));
                    format!("{{address: {address}{tied}{state}{hints}}}")
                })
                .collect();
            text += &format!(
                "  - name: x/s{n}
    clusterIPs: [{ips}]
    internalTrafficPolicy: {}
    externalTrafficPolicy: {}
    {}
    ports: [{{ name: p, port: 80, targetPort: 8080, protocol: {protocol}{node_port} }}, {{ name: q, port: 53, protocol: udp }}]
    endpoints: [{}]\n",
                local(internal),
                local(external),
                outside.replace('X', &n.to_string()),
                endpoints.join(", ")
            );
        }
        view(&text)
    })
}

/// Kinds and subjects, for people.
pub(super) fn texts(found: &Found) -> Vec<String> {
    let text = |difference: &Difference| format!("{} {}", difference.kind, difference.subject);
    found.differences.iter().map(text).collect()
}
