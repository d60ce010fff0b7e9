//! The rules of kube-proxy v1.36, each with its place in pkg/proxy.

use proptest::prelude::*;

use super::{Proxy, Target, targets, usable};
use crate::cluster::{ClusterView, Endpoint, Family, Service, TrafficPolicy, parse};
use crate::proxy::Mode as ProxyMode;

use ProxyMode::{Iptables, Ipvs, Nftables};
use TrafficPolicy::{Cluster, Local};

const MODES: [ProxyMode; 3] = [Ipvs, Iptables, Nftables];

/// Nodes `a` (zone za), `b` (zone zb) and `c` (no zone), and a Service with these endpoints; the traffic enters `a`.
fn view(service: &str, endpoints: &[&str]) -> ClusterView {
    let text = format!(
        "nodes:
  - {{ name: a, address: 10.0.0.1, zone: za }}
  - {{ name: b, address: 10.0.0.2, zone: zb }}
  - {{ name: c, address: 10.0.0.3 }}
services:
  - name: x/s
    clusterIPs: [10.96.0.1, 'fd00:96::1']
    ports: [{{ name: p, port: 80 }}, {{ name: q, port: 81, nodePort: 30081 }}]
    {service}
    endpoints: [{}]
",
        endpoints.join(",\n      ")
    );
    parse(&text, false).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The last numbers of the addresses that are used for the first port.
fn used(view: &ClusterView, policy: TrafficPolicy, mode: ProxyMode) -> Vec<u8> {
    used_on(view, "a", policy, mode)
}

fn used_on(view: &ClusterView, node: &str, policy: TrafficPolicy, mode: ProxyMode) -> Vec<u8> {
    let service = &view.services.as_ref().unwrap()[0];
    let target = Target { service, port: 0, family: Family::V4, policy };
    let endpoints = usable(&target, &Proxy::of(view, node, mode), |_| true);
    last(&target, &endpoints)
}

fn last(target: &Target<'_>, endpoints: &[&Endpoint]) -> Vec<u8> {
    let number = |socket: &std::net::SocketAddr| match socket.ip() {
        std::net::IpAddr::V4(v4) => v4.octets()[3],
        std::net::IpAddr::V6(v6) => v6.octets()[15],
    };
    target.sockets(endpoints).iter().map(number).collect()
}

const ENDING: &str = "ready: false, serving: true, terminating: true";
const DEAD: &str = "ready: false, serving: false";
/// A pod on a lost node: the Pod object is terminating, its last word was "not ready".
const LOST: &str = "ready: false, serving: false, terminating: true";

fn on(node: char, number: u8, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { ", " };
    format!("{{address: 10.1.0.{number}, node: {node}{comma}{more}}}")
}

#[test]
fn the_table() {
    struct Case {
        rule: &'static str,
        endpoints: Vec<String>,
        cluster: &'static [u8],
        local: &'static [u8],
    }
    let zones = |names: &str| format!("hints: {{zones: [{names}]}}");
    let nodes = |names: &str| format!("hints: {{nodes: [{names}]}}");
    let both = |zone: &str, node: &str| format!("hints: {{zones: [{zone}], nodes: [{node}]}}");
    let cases = [
        Case { rule: "no endpoints (CategorizeEndpoints)", endpoints: vec![], cluster: &[], local: &[] },
        Case {
            rule: "ready ones, whatever serving says (CategorizeEndpoints reads ready alone)",
            endpoints: vec![on('a', 1, ""), on('b', 2, ""), on('b', 3, "serving: false"), on('c', 4, DEAD)],
            cluster: &[1, 2, 3],
            local: &[1],
        },
        Case {
            rule: "nothing ready: serving and terminating, not those that serve alone or only end",
            endpoints: vec![
                on('a', 1, ENDING),
                on('b', 2, ENDING),
                on('b', 3, "ready: false, serving: true"),
                on('a', 4, LOST),
                on('a', 5, DEAD),
            ],
            cluster: &[1, 2],
            local: &[1],
        },
        Case {
            rule: "each list falls back by itself (Pre-scan in CategorizeEndpoints)",
            endpoints: vec![on('a', 1, ENDING), on('b', 2, "")],
            cluster: &[2],
            local: &[1],
        },
        Case {
            rule: "ready and terminating (publishNotReadyAddresses) is ready",
            endpoints: vec![on('a', 1, "ready: true, terminating: true"), on('b', 2, ENDING)],
            cluster: &[1],
            local: &[1],
        },
        Case {
            rule: "tied to no node: never local (isLocal in endpointslicecache.go)",
            endpoints: vec!["{address: 10.1.0.1}".into()],
            cluster: &[1],
            local: &[],
        },
        Case {
            rule: "zone hints on all ready ones (topologyModeFromHints); the Local list ignores them",
            endpoints: vec![
                on('a', 1, &zones("zb")),
                on('a', 2, &zones("za, zb")),
                on('b', 3, &zones("za")),
                on('b', 4, DEAD),
                on('b', 5, &format!("{ENDING}, {}", zones("za"))),
            ],
            cluster: &[2, 3],
            local: &[1, 2],
        },
        Case {
            rule: "one ready endpoint without a hint: no topology",
            endpoints: vec![on('a', 1, &zones("za")), on('b', 2, &zones("zb")), on('b', 3, "")],
            cluster: &[1, 2, 3],
            local: &[1],
        },
        Case {
            rule: "no hint for this zone: no topology",
            endpoints: vec![on('a', 1, &zones("zb")), on('b', 2, &zones("zb"))],
            cluster: &[1, 2],
            local: &[1],
        },
        Case {
            rule: "node hints before zone hints",
            endpoints: vec![
                on('a', 1, &both("za", "a")),
                on('b', 2, &both("za", "b")),
                on('b', 3, &both("za", "b, a")),
            ],
            cluster: &[1, 3],
            local: &[1],
        },
        Case {
            rule: "node hints on all, none for this node: zone hints decide",
            endpoints: vec![on('b', 1, &both("za", "b")), on('b', 2, &both("zb", "b"))],
            cluster: &[1],
            local: &[],
        },
        Case {
            rule: "a missing node hint, zone hints on all",
            endpoints: vec![on('a', 1, &both("zb", "a")), on('b', 2, &zones("za"))],
            cluster: &[2],
            local: &[1],
        },
        Case {
            rule: "node hints alone",
            endpoints: vec![on('b', 1, &nodes("b")), on('b', 2, &nodes("a"))],
            cluster: &[2],
            local: &[],
        },
        Case {
            rule: "terminating ones as a fallback know no topology",
            endpoints: vec![on('b', 1, &format!("{ENDING}, {}", zones("zb"))), on('b', 2, ENDING)],
            cluster: &[1, 2],
            local: &[],
        },
        Case {
            rule: "without a port of this name (endpointInfoByServicePort): not there, its hints neither",
            endpoints: vec![on('a', 1, &zones("za")), on('b', 2, "ports: {q: 81}"), on('b', 3, &zones("zb"))],
            cluster: &[1],
            local: &[1],
        },
        Case {
            rule: "the other family has a proxier of its own",
            endpoints: vec![on('a', 1, &zones("za")), "{address: 'fd00:1::2', node: b}".into()],
            cluster: &[1],
            local: &[1],
        },
    ];
    for case in cases {
        let endpoints: Vec<&str> = case.endpoints.iter().map(String::as_str).collect();
        let view = view("internalTrafficPolicy: Local", &endpoints);
        for mode in MODES {
            assert_eq!(used(&view, Cluster, mode), case.cluster, "{mode:?}, Cluster: {}", case.rule);
            // The first port has cluster IPs alone, all of them Local: no list of cluster endpoints is made.
            assert_eq!(used(&view, Local, mode), case.local, "{mode:?}, Local: {}", case.rule);
        }
    }
}

/// `syncEndpoint` in ipvs/proxier.go (PR 97081), `UsesClusterEndpoints` in serviceport.go.
#[test]
fn ipvs_alone_falls_back_where_there_is_a_list_to_fall_back_to() {
    let (away, ending) = (on('b', 2, ""), on('a', 1, ENDING));
    for (service, port, expected) in [
        // Internal Cluster: the list is made.
        ("externalTrafficPolicy: Local", 1, vec![2]),
        ("externalTrafficPolicy: Local", 0, vec![2]),
        // Internal Local: only where the port is reached from outside as well.
        ("internalTrafficPolicy: Local", 0, vec![]),
        ("internalTrafficPolicy: Local", 1, vec![2]),
        ("internalTrafficPolicy: Local\n    externalIPs: [192.0.2.1]", 0, vec![2]),
        ("internalTrafficPolicy: Local\n    externalIPs: ['fd00::9']", 0, vec![]),
        ("internalTrafficPolicy: Local\n    loadBalancerIPs: [192.0.2.1]", 0, vec![2]),
    ] {
        let view = view(service, &[&away]);
        for mode in MODES {
            let target = Target {
                service: &view.services.as_ref().unwrap()[0],
                port,
                family: Family::V4,
                policy: Local,
            };
            let found = usable(&target, &Proxy::of(&view, "a", mode), |_| true);
            let expected = if mode == Ipvs { expected.clone() } else { Vec::new() };
            assert_eq!(last(&target, &found), expected, "{mode:?}, port {port}: {service}");
        }
    }
    // A local endpoint that only ends is enough to stay local.
    let view = view("", &[&away, &ending]);
    for mode in MODES {
        assert_eq!(used(&view, Local, mode), [1], "{mode:?}");
    }
}

#[test]
fn a_family_without_cluster_ip_is_not_served() {
    let text = "nodes: [{ name: a, address: 10.0.0.1 }]
services:
  - name: x/s
    clusterIPs: [10.96.0.1]
    externalIPs: ['fd00::9']
    ports: [{ port: 80 }]
    endpoints: [{ address: 'fd00:1::1', node: a }, { address: 10.1.0.1, node: a }]
";
    let view = parse(text, false).unwrap();
    let service = &view.services.as_ref().unwrap()[0];
    for (family, count) in [(Family::V4, 1), (Family::V6, 0)] {
        let target = Target { service, port: 0, family, policy: Cluster };
        assert_eq!(usable(&target, &Proxy::of(&view, "a", Ipvs), |_| true).len(), count, "{family:?}");
    }
    assert!(targets(service, Ipvs).all(|target| target.family == Family::V4));
}

/// An endpoint that is left out is as if it had never been there: with the last one of a zone gone, all others are used.
#[test]
fn hints_are_judged_again_on_what_is_left() {
    let hint = |zone| format!("hints: {{zones: [{zone}]}}");
    let endpoints =
        [on('a', 1, &hint("za")), on('b', 2, &hint("za")), on('b', 3, &hint("zb")), on('c', 4, ENDING)];
    let view = view("", &endpoints.iter().map(String::as_str).collect::<Vec<_>>());
    let service = &view.services.as_ref().unwrap()[0];
    let target = Target { service, port: 0, family: Family::V4, policy: Cluster };
    let proxy = Proxy::of(&view, "a", Nftables);
    let without = |gone: &[u8]| {
        let left = |endpoint: &Endpoint| match endpoint.address {
            std::net::IpAddr::V4(v4) => !gone.contains(&v4.octets()[3]),
            std::net::IpAddr::V6(_) => true,
        };
        last(&target, &usable(&target, &proxy, left))
    };
    assert_eq!(without(&[]), [1, 2]);
    assert_eq!(without(&[1]), [2]);
    assert_eq!(without(&[1, 2]), [3]);
    assert_eq!(without(&[1, 2, 3]), [4]);
    assert_eq!(without(&[1, 2, 3, 4]), [0_u8; 0]);
    // A node that is not in the view, and one without a zone.
    assert_eq!(used_on(&view, "z", Cluster, Ipvs), [1, 2, 3]);
    assert_eq!(used_on(&view, "c", Cluster, Ipvs), [1, 2, 3]);
}

fn any_endpoint() -> impl Strategy<Value = String> {
    let condition = || prop::option::of(any::<bool>());
    let names = |all: &'static [&'static str]| prop::collection::vec(prop::sample::select(all), 0..3);
    let hints = (prop::bool::weighted(0.7), names(&["za", "zb"]), names(&["a", "b", "c"]));
    let node = prop::option::weighted(0.9, prop::sample::select(&['a', 'b', 'c'][..]));
    (node, condition(), condition(), condition(), hints).prop_map(
        |(node, ready, serving, terminating, (hinted, zones, nodes))| {
            let mut text = String::new();
            if let Some(node) = node {
                text += &format!(", node: {node}");
            }
            for (name, value) in [("ready", ready), ("serving", serving), ("terminating", terminating)] {
                if let Some(value) = value {
                    text += &format!(", {name}: {value}");
                }
            }
            if hinted {
                text += &format!(", hints: {{zones: [{}], nodes: [{}]}}", zones.join(", "), nodes.join(", "));
            }
            text
        },
    )
}

/// A Service of random shape.
fn any_view() -> impl Strategy<Value = ClusterView> {
    let policy = || prop::sample::select(&["Cluster", "Local"][..]);
    (prop::collection::vec(any_endpoint(), 0..6), policy(), policy(), any::<bool>()).prop_map(
        |(endpoints, internal, external, outside)| {
            let mut service =
                format!("internalTrafficPolicy: {internal}\n    externalTrafficPolicy: {external}");
            if outside {
                service += "\n    externalIPs: [192.0.2.1]";
            }
            let endpoints: Vec<String> = (1..)
                .zip(endpoints)
                .map(|(number, more): (u8, String)| format!("{{address: 10.1.0.{number}{more}}}"))
                .collect();
            view(&service, &endpoints.iter().map(String::as_str).collect::<Vec<_>>())
        },
    )
}

fn service(view: &ClusterView) -> &Service {
    &view.services.as_ref().unwrap()[0]
}

proptest! {
    /// Whatever the Service: only endpoints that are there and usable are used, and none that is left out. An endpoint that nobody uses
    /// changes nothing when it goes. Local never gives more than local endpoints, but for the fallback.
    #[test]
    fn never_more_than_what_is_there(view in any_view(), gone in prop::collection::vec(1u8..6, 0..4)) {
        let left = |endpoint: &Endpoint| match endpoint.address {
            std::net::IpAddr::V4(v4) => !gone.contains(&v4.octets()[3]),
            std::net::IpAddr::V6(_) => true,
        };
        for mode in MODES {
            let proxy = Proxy::of(&view, "a", mode);
            for target in targets(service(&view), mode) {
                let found = usable(&target, &proxy, left);
                let ready = found.iter().all(|e| e.ready);
                let ending = found.iter().all(|e| !e.ready && e.serving && e.terminating);
                prop_assert!(ready || ending, "mixed: {found:?}");
                prop_assert!(found.iter().all(|e| left(e)));
                prop_assert!(found.windows(2).all(|pair| pair[0].address < pair[1].address));
                // Dead endpoints decide nothing.
                let alive = |e: &Endpoint| left(e) && (e.ready || e.serving && e.terminating);
                prop_assert_eq!(&usable(&target, &proxy, alive), &found);
                // If only the chosen endpoints are there, they are chosen again. Not always all of them: hints count where every ready endpoint
                // has one, and may do so only now that others are gone.
                let chosen: Vec<_> = found.iter().map(|e| e.address).collect();
                let again = usable(&target, &proxy, |e| chosen.contains(&e.address));
                prop_assert!(again.iter().all(|e| found.contains(e)));
                prop_assert_eq!(again.is_empty(), found.is_empty());
                if target.policy == Cluster {
                    let own = |e: &&Endpoint| Family::of(e.address) == target.family;
                    let any = service(&view).endpoints.iter().filter(own).any(alive);
                    prop_assert_eq!(!found.is_empty(), any, "fails though something is alive, or the reverse");
                }
            }
        }
    }

    /// iptables and nftables are the same; IPVS differs for Local alone.
    #[test]
    fn the_modes_differ_where_local_is_empty(view in any_view()) {
        for target in targets(service(&view), Iptables) {
            let in_mode = |mode| usable(&target, &Proxy::of(&view, "a", mode), |_| true);
            prop_assert_eq!(in_mode(Iptables), in_mode(Nftables));
            if target.policy == Cluster || !in_mode(Iptables).is_empty() {
                prop_assert_eq!(in_mode(Ipvs), in_mode(Iptables));
            }
        }
    }
}
