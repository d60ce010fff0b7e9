//! Which ports are exempt, in single cases and by the definition.
use std::{collections::BTreeSet, net::IpAddr};

use nodefence_common::{PortKey, port_flags};
use proptest::prelude::*;

use super::{
    super::{ExemptPort, Exemptions, Proxy, Why, targets, usable},
    ExemptIndex, exemptions,
};
use crate::{
    cluster::{ClusterView, Endpoint, NodeSet, Service, TrafficPolicy, parse},
    proxy::Mode as ProxyMode,
};

/// The nodes of every view here; `a` is the own one.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Nodes `a` (the own one) to `d`, in two zones.
fn view(services: &str) -> ClusterView {
    let nodes = "nodes:
  - { name: a, address: 10.0.0.1, zone: z1 }
  - { name: b, address: 10.0.0.2, zone: z1 }
  - { name: c, addresses: [10.0.0.3, 'fd00::3'], zone: z2 }
  - { name: d, address: 10.0.0.4, zone: z2, backends: [{ address: 10.1.4.1 }] }
";
    let text = format!("{nodes}{services}");
    parse(&text, false).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn service(name: &str, last: u8, more: &str, endpoints: &[&str]) -> String {
    format!(
        "  - name: x/{name}
    clusterIPs: [10.96.0.{last}]
    {more}
    ports: [{{ name: p, port: 80, targetPort: 8080 }}, {{ name: q, port: 53, protocol: udp }}]
    endpoints: [{}]\n",
        endpoints.join(", ")
    )
}

fn flags(view: &ClusterView, names: &str) -> NodeSet {
    names.chars().map(|name| view.index(&name.to_string()).unwrap()).collect()
}

fn exempt_in(view: &ClusterView, mode: Option<ProxyMode>, names: &str) -> Exemptions {
    exemptions(view, &ExemptIndex::new(view), "a", mode, &flags(view, names))
}

fn exempt(view: &ClusterView, names: &str) -> Vec<String> {
    texts(&exempt_in(view, None, names))
}

fn texts(exemptions: &Exemptions) -> Vec<String> {
    exemptions.ports.keys().map(|exempt| exempt.backend().to_string()).collect()
}

#[test]
fn only_what_has_nothing_else_is_exempt() {
    let view = view(&format!(
        "services:\n{}",
        service("s", 1, "", &["{address: 10.1.2.1, node: b}", "{address: 10.1.3.1, node: c}"])
    ));
    assert_eq!(exempt(&view, "b"), [""; 0]);
    assert_eq!(exempt(&view, "bd"), [""; 0]);
    let both = ["10.1.2.1:53/udp", "10.1.2.1:8080/tcp", "10.1.3.1:53/udp", "10.1.3.1:8080/tcp"];
    let mut found = exempt(&view, "bc");
    found.sort();
    assert_eq!(found, both);

    let exemptions = exempt_in(&view, None, "bc");
    let (port, reason) = exemptions.ports.iter().find(|(port, _)| port.port == 8080).unwrap();
    assert_eq!(reason.why, Why::NothingElse(TrafficPolicy::Cluster));
    assert_eq!((reason.service, reason.port), (0, 0));
    assert_eq!(Some(port.node), view.index("b"));
    // Each port, and its address.
    let addr = port.address.into();
    assert_eq!(exemptions.keys().get(&PortKey::exempt(addr, 8080, 6)), Some(&port_flags::EXEMPT));
    assert_eq!(exemptions.keys().get(&PortKey::exempt_address(addr)), Some(&port_flags::EXEMPT));
    assert_eq!(exemptions.keys().len(), 6);
}

/// The backends of a node that are cut while these nodes bear flags.
fn cut(view: &ClusterView, names: &str, of: &str) -> Vec<String> {
    let exemptions = exempt_in(view, None, names);
    let cut = exemptions.cut(view.index(of).unwrap(), view.node(of).unwrap());
    cut.map(|backend| backend.to_string()).collect()
}

#[test]
fn an_address_with_an_exempt_port_passes_but_for_what_other_services_name() {
    let shared = "{address: 10.1.2.1, node: b, ports: {p: 8080, q: 5300}}";
    let not_ready = "{address: 10.1.2.1, node: b, ready: false, ports: {p: 9090}}";
    let view = view(&format!(
        "services:\n{}{}{}",
        service("many", 1, "", &[shared, "{address: 10.1.2.2, node: b}", "{address: 10.1.3.1, node: c}"]),
        service("one", 2, "", &["{address: 10.1.2.1, node: b, ports: {p: 8081}}"]),
        service("other", 3, "", &[not_ready, "{address: 10.1.3.1, node: c, ports: {p: 8081}}"]),
    ));
    assert_eq!(exempt(&view, "b"), ["10.1.2.1:8081/tcp"]);
    // An endpoint that is not ready is not used, and needs no exemption.
    let named = ["10.1.2.1:5300/udp", "10.1.2.1:8080/tcp", "10.1.2.1:9090/tcp"];
    assert_eq!(cut(&view, "b", "b"), [&named[..], &["10.1.2.2"]].concat());
    let keys = exempt_in(&view, None, "b").keys();
    let says = |says: u32| keys.values().filter(|flags| **flags == says).count();
    assert_eq!((says(port_flags::EXEMPT), says(port_flags::CUT)), (2, 3));
    let addr = IpAddr::from([10, 1, 2, 1]).into();
    assert_eq!(keys.get(&PortKey::exempt(addr, 5300, 17)), Some(&port_flags::CUT));
    // Both nodes are flagged: all ports but those that nobody uses are exempt.
    assert_eq!(cut(&view, "bc", "b"), ["10.1.2.1:9090/tcp"]);
    assert_eq!(cut(&view, "bc", "c"), [""; 0]);
    assert_eq!(cut(&view, "c", "c"), ["10.1.3.1:53/udp", "10.1.3.1:8080/tcp"]);
    assert_eq!(cut(&view, "c", "b"), ["10.1.2.1", "10.1.2.2"]);
}

/// At an address that the node shares only ports are ever cut, so only ports are exempt there.
#[test]
fn a_shared_address_is_never_exempt_as_a_whole() {
    let on_host =
        |port: u16| format!("{{address: 10.0.0.2, node: b, hostNetwork: true, ports: {{p: {port}}}}}");
    let view = view(&format!(
        "services:\n{}{}",
        service("one", 1, "", &[&on_host(8081)]),
        service("many", 2, "", &[&on_host(8080), "{address: 10.1.3.1, node: c, ports: {p: 1}}"]),
    ));
    assert_eq!(exempt(&view, "b"), ["10.0.0.2:8081/tcp"]);
    assert_eq!(cut(&view, "b", "b"), ["10.0.0.2:8080/tcp"]);
    let keys = exempt_in(&view, None, "b").keys();
    let addr = IpAddr::from([10, 0, 0, 2]).into();
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), [(PortKey::exempt(addr, 8081, 6), port_flags::EXEMPT)]);
}

#[test]
fn one_service_is_enough_and_only_its_ports_count() {
    let shared = "{address: 10.1.2.1, node: b, ports: {p: 8080}}";
    let view = view(&format!(
        "services:\n{}{}",
        service("many", 1, "", &[shared, "{address: 10.1.3.1, node: c}"]),
        service("one", 2, "", &["{address: 10.1.2.1, node: b, ports: {p: 8081}}"]),
    ));
    assert_eq!(exempt(&view, "b"), ["10.1.2.1:8081/tcp"]);
}

#[test]
fn what_is_tied_to_no_node_lives() {
    let alone = "{address: 10.1.2.1, node: b}";
    let untied = |address: &str| format!("{{address: {address}}}");
    let text = |endpoint: &str| view(&format!("services:\n{}", service("s", 1, "", &[alone, endpoint])));
    assert_eq!(exempt(&text(&untied("192.0.2.9")), "bc"), [""; 0]);
    // An endpoint that is tied to no node may have the address of a backend, and even so is never cut.
    let view = text(&untied("10.1.4.1"));
    assert_eq!(exempt(&view, "b"), [""; 0]);
    assert_eq!(exempt(&view, "d"), ["10.1.4.1:53/udp", "10.1.4.1:8080/tcp"]);
    let exemptions = exempt_in(&view, None, "bd");
    assert!(exemptions.ports.values().all(|reason| reason.why == Why::Untied));
    assert_eq!(texts(&exemptions), ["10.1.4.1:53/udp", "10.1.4.1:8080/tcp"]);
}

#[test]
fn ports_of_a_service_that_is_left_out_are_exempt_on_every_flagged_node() {
    let ours =
        ["{address: 10.1.2.1, node: b, ports: {p: 8080}}", "{address: 10.1.3.1, node: c, ports: {p: 8080}}"];
    let others =
        ["{address: 10.1.2.1, node: b, ports: {p: 9090}}", "{address: 10.1.3.1, node: c, ports: {p: 9090}}"];
    let dead = "{address: 10.1.2.2, node: b, ports: {p: 8080}, ready: false}";
    for mode in ["mode: off", "mode: observe"] {
        let view = view(&format!(
            "services:\n{}{}",
            service("left", 1, mode, &[ours[0], ours[1], dead]),
            service("other", 2, "", &others),
        ));
        // Whether kube-proxy uses an endpoint does not matter. Ports of the other Service are cut.
        assert_eq!(exempt(&view, "b"), ["10.1.2.1:8080/tcp", "10.1.2.2:8080/tcp"], "{mode}");
        assert!(cut(&view, "b", "b").contains(&"10.1.2.1:9090/tcp".to_owned()), "{:?}", cut(&view, "b", "b"));
        assert_eq!(exempt(&view, "a"), [""; 0]);
        assert!(exempt_in(&view, None, "b").ports.values().all(|reason| reason.why == Why::LeftOut));
    }
}

#[test]
fn what_kube_proxy_does_not_use_is_no_alternative_and_not_exempt() {
    for dead in ["ready: false", "ready: false, serving: true, terminating: true"] {
        let dead = format!("{{address: 10.1.3.1, node: c, {dead}}}");
        let view =
            view(&format!("services:\n{}", service("s", 1, "", &["{address: 10.1.2.1, node: b}", &dead])));
        assert_eq!(exempt(&view, "bc"), ["10.1.2.1:53/udp", "10.1.2.1:8080/tcp"], "{dead}");
    }
    assert_eq!(exempt(&view("services: []\n"), "abcd"), [""; 0]);
    assert_eq!(exempt(&view(""), "abcd"), [""; 0]);
}

/// kube-proxy does not know a headless Service: DNS tells clients all endpoints that are ready, wherever they are and whatever a policy says.
#[test]
fn of_a_headless_service_all_ready_endpoints_count() {
    let with = |more: &str, endpoints: &[&str]| {
        let text = service("s", 1, more, endpoints);
        for none in ["[None]", "[]"] {
            let headless = text.replace("[10.96.0.1]", none);
            assert_ne!(headless, text);
            view(&format!("services:\n{headless}"));
        }
        view(&format!("services:\n{}", text.replace("[10.96.0.1]", "[None]")))
    };
    let on_b = "{address: 10.1.2.1, node: b, ports: {p: 1}}";
    let alone = with("internalTrafficPolicy: Local", &[on_b, "{address: 10.1.3.1, node: c, ready: false}"]);
    assert_eq!(exempt(&alone, "b"), ["10.1.2.1:1/tcp"]);
    let reason = *exempt_in(&alone, None, "b").ports.values().next().unwrap();
    assert_eq!(reason.why, Why::NothingElse(TrafficPolicy::Cluster));
    // DNS ignores hints and zones.
    let hints = "{address: 10.1.3.1, node: c, ports: {p: 1}, hints: {zones: [z2]}}";
    let both = with("", &["{address: 10.1.2.1, node: b, ports: {p: 1}, hints: {zones: [z1]}}", hints]);
    assert_eq!((exempt(&both, "b"), exempt(&both, "c")), (vec![], vec![]));
    assert_eq!(exempt(&both, "bc"), ["10.1.2.1:1/tcp", "10.1.3.1:1/tcp"]);
    // DNS names no terminating endpoint, even where there is no other.
    let ends = "{address: 10.1.2.1, node: b, ready: false, serving: true, terminating: true}";
    assert_eq!(exempt(&with("", &[ends]), "b"), [""; 0]);
    // An endpoint that is tied to no node is never cut.
    assert_eq!(exempt(&with("", &[on_b, "{address: 192.0.2.9, ports: {p: 1}}"]), "b"), [""; 0]);
    // A client of one IP version has nothing else, whatever endpoints the other version has.
    let dual = with("", &[on_b, "{address: 'fd00:1:3::1', node: c, ports: {p: 1}}"]);
    assert_eq!(exempt(&dual, "b"), ["10.1.2.1:1/tcp"]);
    assert_eq!(exempt(&dual, "c"), ["[fd00:1:3::1]:1/tcp"]);
}

/// kube-proxy goes on choosing among the endpoints of its zone: live endpoints elsewhere do not help.
#[test]
fn hints_count_as_kube_proxy_counts_them() {
    let view = view(&format!(
        "services:\n{}",
        service(
            "s",
            1,
            "",
            &[
                "{address: 10.1.2.1, node: b, ports: {p: 1}, hints: {zones: [z1]}}",
                "{address: 10.1.3.1, node: c, ports: {p: 1}, hints: {zones: [z2]}}",
            ]
        )
    ));
    assert_eq!(exempt(&view, "b"), ["10.1.2.1:1/tcp"]);
    assert_eq!(exempt(&view, "c"), [""; 0]);
}

#[test]
fn local_policies_keep_local_endpoints() {
    let own = "{address: 10.1.1.1, node: a, ports: {p: 1}}";
    let other = "{address: 10.1.2.1, node: b, ports: {p: 1}}";
    let with = |more: &str| view(&format!("services:\n{}", service("s", 1, more, &[own, other])));
    let internal = with("internalTrafficPolicy: Local");
    let external = with("externalTrafficPolicy: Local\n    externalIPs: [192.0.2.1]");
    for mode in [ProxyMode::Ipvs, ProxyMode::Iptables, ProxyMode::Nftables] {
        let exempt = |view, names| texts(&exempt_in(view, Some(mode), names));
        assert_eq!(exempt(&internal, "a"), ["10.1.1.1:1/tcp"], "{mode:?}");
        assert_eq!(exempt(&internal, "b"), [""; 0], "{mode:?}");
        // Traffic to the external address has the local endpoint alone. Once both nodes are flagged, both endpoints are exempt, for the cluster IP.
        assert_eq!(exempt(&external, "a"), ["10.1.1.1:1/tcp"], "{mode:?}");
        assert_eq!(exempt(&external, "ab"), ["10.1.1.1:1/tcp", "10.1.2.1:1/tcp"], "{mode:?}");
    }
    let reason = *exempt_in(&external, None, "a").ports.values().next().unwrap();
    assert_eq!(reason.why, Why::NothingElse(TrafficPolicy::Local));
}

/// Some Services over pods of four nodes.
fn any_services() -> impl Strategy<Value = ClusterView> {
    let endpoint = (1u8..5, 1u8..3, 0u8..3, any::<bool>(), prop::option::of(1u8..3));
    let one = (
        prop::collection::vec(endpoint, 0..5),
        prop::bool::weighted(0.2),
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(&["", "externalIPs: [192.0.2.X]", "loadBalancerIPs: ['fd00::X']"][..]),
    );
    prop::collection::vec(one, 0..5).prop_map(|services| {
        let mut text = String::from("services:\n");
        for (n, (endpoints, headless, internal, external, outside)) in (1u8..).zip(services) {
            let local = |local: bool| if local { "Local" } else { "Cluster" };
            let more = format!(
                "internalTrafficPolicy: {}\n    externalTrafficPolicy: {}\n    {}",
                local(internal),
                local(external),
                outside.replace('X', &n.to_string())
            );
            let mut seen = BTreeSet::new();
            let endpoints: Vec<String> = endpoints
                .into_iter()
                .filter(|(node, pod, ..)| seen.insert((*node, *pod)))
                .map(|(node, pod, state, tied, zone)| {
                    let state =
                        ["", ", ready: false", ", ready: false, terminating: true"][usize::from(state)];
                    let name = char::from(b'`' + node);
                    let node_field = if tied { format!(", node: {name}") } else { String::new() };
                    let hints = zone.map_or(String::new(), |zone| format!(", hints: {{zones: [z{zone}]}}"));
                    format!("{{address: 10.1.{node}.{pod}{node_field}{state}{hints}}}")
                })
                .collect();
            let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
            let one = service(&format!("s{n}"), n, &more, &endpoints);
            text += &if headless { one.replace(&format!("[10.96.0.{n}]"), "[None]") } else { one };
        }
        if text.ends_with("services:\n") {
            text = "services: []\n".into();
        }
        view(&text)
    })
}

/// The endpoints that DNS tells for each port of a Service without a cluster IP, for either IP version.
fn headless(service: &Service) -> Vec<(usize, Vec<&Endpoint>)> {
    let mut all = Vec::new();
    for port in 0..service.ports.len() {
        for v4 in [true, false] {
            let named = service.endpoints.iter().filter(|one| one.ready && one.address.is_ipv4() == v4);
            let named = named.filter(|one| service.target(port, one).is_some()).collect();
            all.extend(service.cluster_ips.is_empty().then_some((port, named)));
        }
    }
    all
}

/// The definition, read word by word: every Service, every list, every endpoint.
fn slowly(view: &ClusterView, mode: ProxyMode, flagged: &NodeSet) -> BTreeSet<ExemptPort> {
    let mut exempt = BTreeSet::new();
    for service in view.services.iter().flatten() {
        let proxy = Proxy::of(view, "a", mode);
        let by_proxy = targets(service, mode).map(|at| (at.port, usable(&at, &proxy, |_| true)));
        for (at, all) in by_proxy.chain(headless(service)) {
            if all.iter().any(|endpoint| endpoint.node.is_none_or(|node| !flagged.contains(node))) {
                continue;
            }
            for endpoint in all {
                exempt.insert(ExemptPort {
                    node: endpoint.node.unwrap(),
                    address: endpoint.address,
                    port: service.target(at, endpoint).unwrap(),
                    protocol: service.ports[at].protocol,
                });
            }
        }
        for (p, port) in service.ports.iter().enumerate() {
            for endpoint in service.endpoints.iter().filter(|endpoint| endpoint.node.is_none()) {
                for (at, node) in view.indexed() {
                    if flagged.contains(at) && node.backends.iter().any(|b| b.address == endpoint.address) {
                        let (address, protocol) = (endpoint.address, port.protocol);
                        let port = service.target(p, endpoint).unwrap();
                        exempt.insert(ExemptPort { node: at, address, port, protocol });
                    }
                }
            }
        }
    }
    exempt
}

proptest! {
    /// The index gives the same exemptions as looking everywhere. More flags exempt more. An unknown mode exempts what any of the modes would.
    #[test]
    fn keep_is_what_it_says(
        view in any_services(),
        flagged in prop::sample::subsequence(&NAMES[..], 0..5),
        more in prop::sample::select(&NAMES[..]),
    ) {
        let index = ExemptIndex::new(&view);
        let of = |mode, flagged: &NodeSet| {
            exemptions(&view, &index, "a", mode, flagged).ports.into_keys().collect::<BTreeSet<_>>()
        };
        let larger = flags(&view, &(flagged.concat() + more));
        let flagged = flags(&view, &flagged.concat());
        let unknown = of(None, &flagged);
        for mode in [ProxyMode::Ipvs, ProxyMode::Iptables, ProxyMode::Nftables] {
            let found = of(Some(mode), &flagged);
            prop_assert_eq!(&found, &slowly(&view, mode, &flagged));
            prop_assert!(found.is_subset(&unknown), "{mode:?}");
            prop_assert!(found.is_subset(&of(Some(mode), &larger)), "another flag ends an exemption");
        }
    }
}
