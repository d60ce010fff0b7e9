use std::{fmt::Write as _, time::Instant};

use super::{
    super::{
        protocol::Protocol,
        service::{DEFAULT_AFFINITY, ServiceMode, TrafficPolicy},
        view::{ClusterView, Node},
    },
    Problem, parse,
};
use crate::Family;

const NODES: &str = "nodes:
  - { name: node-b, address: 10.2.0.12, zone: z1 }
  - name: node-a
    address: 10.2.0.11
    backends: [{ address: 10.244.1.4 }]
";

const GOOD: &str = "services:
  - name: default/web
    clusterIPs: [10.96.0.10, 'fd00:96::a']
    externalIPs: [203.0.113.7]
    loadBalancerIPs: [198.51.100.9]
    sessionAffinity: ClientIP
    sessionAffinityTimeoutSeconds: 600
    internalTrafficPolicy: Local
    externalTrafficPolicy: Local
    ports:
      - { name: https, port: 443, targetPort: 8443, nodePort: 30443, protocol: TCP }
      - { name: http, port: 80 }
    endpoints:
      - address: 10.244.2.7
        node: node-b
        zone: z1
        ports: { http: 8080 }
        ready: false
        serving: true
        terminating: true
        hints: { zones: [z1, z2], nodes: [node-b] }
      - { address: 10.244.1.4, node: node-a }
      - { address: 10.2.0.12, node: node-b }
      - { address: 192.0.2.4 }
  - name: kube-system/dns
    sessionAffinity: ClientIP
    ports: [{ port: 53, protocol: udp }]
";

fn view(services: &str) -> Result<ClusterView, Problem> {
    parse(&format!("{NODES}{services}"), false)
}

/// A file whose only Service has these lines beside its name.
fn refusal(lines: &str) -> String {
    view(&format!("services:\n  - name: default/web\n{lines}")).expect_err(lines).to_string()
}

fn endpoint(text: &str) -> String {
    refusal(&format!("    ports: [{{ port: 80 }}]\n    endpoints:\n      - {text}\n"))
}

#[test]
fn reads_the_example() {
    let view = view(GOOD).unwrap();
    assert_eq!(view.endpoints(), Some(4));
    let services = view.services.as_ref().unwrap();
    let (web, dns) = (&services[0], &services[1]);
    assert_eq!(web.affinity.unwrap().as_secs(), 600);
    assert_eq!((web.internal, web.external), (TrafficPolicy::Local, TrafficPolicy::Local));
    assert_eq!(dns.affinity, Some(DEFAULT_AFFINITY));
    assert_eq!((dns.internal, dns.external), (TrafficPolicy::Cluster, TrafficPolicy::Cluster));
    assert_eq!(dns.ports[0].protocol, Protocol::Udp);
    assert!(dns.endpoints.is_empty() && !dns.proxied(Family::V4) && web.proxied(Family::V6));

    // By address and by name, wherever they stand in the file.
    let addresses: Vec<String> = web.endpoints.iter().map(|e| e.address.to_string()).collect();
    assert_eq!(addresses, ["10.2.0.12", "10.244.1.4", "10.244.2.7", "192.0.2.4"]);
    assert_eq!(web.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["http", "https"]);
    assert_eq!((web.ports[0].target, web.ports[0].node_port), (80, None));
    assert_eq!((web.ports[1].target, web.ports[1].node_port), (8443, Some(30443)));

    let own = &web.endpoints[2];
    assert_eq!(view.at(own.node.unwrap()).unwrap().name, "node-b");
    assert_eq!((own.ready, own.serving, own.terminating), (false, true, true));
    assert_eq!(own.zone(), Some("z1"));
    let hints = own.hints().unwrap();
    assert!(hints.zones.contains("z2") && hints.nodes.contains("node-b") && !hints.nodes.contains("z2"));
    assert_eq!((web.target(0, own), web.target(1, own)), (Some(8080), None));
    let plain = &web.endpoints[1];
    assert_eq!(
        (web.target(0, plain), web.target(1, plain), web.target(2, plain)),
        (Some(80), Some(8443), None)
    );
    assert_eq!(web.socket(1, plain).unwrap().to_string(), "10.244.1.4:8443");
}

#[test]
fn a_service_can_be_left_out() {
    let mode = |line: &str| {
        let view = view(&format!("services:\n  - name: x/a\n    ports: [{{ port: 80 }}]\n    {line}\n"));
        view.map(|view| view.services.unwrap()[0].mode.clone())
    };
    assert_eq!(mode("endpoints: []").unwrap(), ServiceMode::Cut);
    assert_eq!(mode("mode: off").unwrap(), ServiceMode::Off);
    assert_eq!(mode("mode: observe").unwrap(), ServiceMode::Observe);
    let error = mode("mode: enforce").unwrap_err().to_string();
    assert!(error.contains("services[0].mode") && error.contains("observe"), "{error}");
}

/// `addEndpoints` in pkg/proxy/endpointslicecache.go: ready and serving unless said otherwise, each by itself.
#[test]
fn nil_is_read_as_kube_proxy_reads_it() {
    for (text, expected) in [
        ("", (true, true, false)),
        ("ready: false", (false, true, false)),
        ("serving: false", (true, false, false)),
        ("terminating: true", (true, true, true)),
        ("ready: null, serving: null, terminating: null, hints: null", (true, true, false)),
    ] {
        let text = format!(
            "services: [{{name: a/b, ports: [{{port: 80}}], endpoints: [{{address: 10.9.9.9, {text}}}]}}]\n"
        );
        let view = view(&text).unwrap();
        let endpoint = &view.services.unwrap()[0].endpoints[0];
        assert_eq!((endpoint.ready, endpoint.serving, endpoint.terminating), expected, "{text}");
        assert_eq!(endpoint.hints(), None);
    }
    let empty = "services: [{name: a/b, ports: [{port: 80}], endpoints: [{address: 10.9.9.9, hints: {zones: []}}]}]\n";
    assert_eq!(view(empty).unwrap().services.unwrap()[0].endpoints[0].hints(), None);
}

#[test]
fn endpoints_are_backends_of_their_nodes() {
    let view = view(GOOD).unwrap();
    let backends = |name| {
        let node: &Node = view.node(name).unwrap();
        node.backends.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // Listed already: once. Tied to no node: nobody's.
    assert_eq!(backends("node-a"), ["10.244.1.4"]);
    assert_eq!(backends("node-b"), ["10.2.0.12:80/tcp", "10.2.0.12:8443/tcp", "10.244.2.7"]);
    assert_eq!(view.backends(), 4);
}

#[test]
fn a_second_address_of_a_node_is_shared_where_the_file_says_so() {
    let text = "services: [{name: a/b, ports: [{port: 80, protocol: sctp}], endpoints: [
        {address: 'fd00::12', node: node-b, hostNetwork: true}]}]\n";
    let node = |text: &str| {
        let view = parse(text, false).unwrap();
        view.node("node-b").unwrap().backends.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(node(&format!("{NODES}{text}")), ["[fd00::12]:80/sctp"]);
    // Or where a backend already did.
    let listed = "nodes:
  - name: node-b
    address: 10.2.0.12
    backends: [{ address: 'fd00::12', port: 9100, protocol: tcp, hostNetwork: true }]
";
    let plain = text.replace(", hostNetwork: true", "");
    assert_eq!(node(&format!("{listed}{plain}")), ["[fd00::12]:80/sctp", "[fd00::12]:9100/tcp"]);
}

#[test]
fn no_services_is_not_the_same_as_none() {
    assert_eq!(view("").unwrap().services, None);
    assert!(matches!(view("services:\n"), Err(Problem::NoServices)));
    assert_eq!(view("services: []\n").unwrap().services, Some(Vec::new()));
}

#[test]
fn order_means_nothing() {
    let sorted = view(GOOD).unwrap();
    let mut json = serde_json_of(GOOD);
    for list in [&mut json["services"]] {
        let list = list.as_array_mut().unwrap();
        list.reverse();
        for service in list {
            for what in ["ports", "endpoints", "clusterIPs"] {
                if let Some(list) = service[what].as_array_mut() {
                    list.reverse();
                }
            }
        }
    }
    let nodes = serde_json_of(NODES)["nodes"].clone();
    let mut reversed = nodes.as_array().unwrap().clone();
    reversed.reverse();
    json["nodes"] = reversed.into();
    assert_eq!(parse(&json.to_string(), false).unwrap(), sorted);
}

/// The same as JSON.
fn serde_json_of(yaml: &str) -> serde_json::Value {
    serde_saphyr::from_str_with_options(yaml, super::raw::options()).unwrap()
}

#[test]
fn says_line_and_field() {
    let ports = "    ports: [{ port: 80 }]\n";
    let with = |line: &str| refusal(&format!("{ports}    {line}\n"));
    let port = |text: &str| refusal(&format!("    ports:\n      - {text}\n"));
    let two = |ports: &str, second: &str| {
        let text = format!(
            "services:\n  - name: a/a\n    clusterIPs: [10.96.0.1]\n    ports: [{ports}]\n  - {second}\n"
        );
        view(&text).expect_err(&text).to_string()
    };
    let cases = [
        (refusal(""), "services[0]: missing field `ports` at line 7, column 5"),
        (refusal("    clusterIPs: [10.96.0.1]\n    ports: []\n"), "services[0].ports: empty"),
        (refusal("    ports: 80\n"), "services[0].ports: expected sequence start at line 8, column 12"),
        (port("{}"), "services[0].ports[0]: missing field `port` at line 9, column 9"),
        (
            port("{ port: 0 }"),
            "services[0].ports[0].port: `0` is no port: expected 1 to 65535 at line 9, column 17",
        ),
        (port("{ port: 80, targetPort: http }"), "services[0].ports[0].targetPort: `http` is no port"),
        (port("{ port: 80, nodePort: 70000 }"), "services[0].ports[0].nodePort: `70000` is no port"),
        (port("{ port: 80, protocol: icmp }"), "services[0].ports[0].protocol: `icmp` is no protocol"),
        (port("{ port: 80, name: Web }"), "services[0].ports[0].name: `Web` is no name of a port"),
        (port("{ port: 80, target: 8 }"), "unknown field `target`, expected one of name, port, targetPort"),
        (
            port("{ port: 80 }\n      - { port: 81 }"),
            "services[0].ports[0].name: missing; where a Service has",
        ),
        (
            port("{ port: 80, name: a }\n      - { port: 81, name: a }"),
            "services[0].ports[1].name: another port has the name `a` at line 10, column 27",
        ),
        (
            port("{ port: 80, name: a }\n      - { port: 80, name: b }"),
            "services[0].ports[1].port: `a` has 80/tcp already",
        ),
        (
            port("{ port: 80, name: a, nodePort: 30001 }\n      - { port: 81, name: b, nodePort: 30001 }"),
            "services[0].ports[1].nodePort: 30001/tcp is the node port of this Service already at line 10",
        ),
        (
            with("clusterIPs: [10.96.0.300]"),
            "services[0].clusterIPs[0]: `10.96.0.300` is no IP address: expected one as in 10.2.0.12 or fd00::12 at line 9, column 18",
        ),
        (
            with("clusterIPs: [10.96.0.1, 10.96.0.2]"),
            "services[0].clusterIPs: more than one address of one IP",
        ),
        (with("clusterIPs: [None, None]"), "services[0].clusterIPs[0]: `None` stands beside others"),
        (with("externalIPs: [None]"), "services[0].externalIPs[0]: `None` is no IP address"),
        (with("externalIPs: [127.0.0.1]"), "services[0].externalIPs[0]: 127.0.0.1 is a loopback address"),
        (
            with("loadBalancerIPs: 10.0.0.1"),
            "services[0].loadBalancerIPs: expected sequence start at line 9, column 22",
        ),
        (
            with("externalIPs: [10.9.9.9, 10.9.9.9]"),
            "services[0].externalIPs[1]: 10.9.9.9 of port 80/tcp is a virtual address of this Service already at line 9",
        ),
        (
            with("sessionAffinity: clientip"),
            "services[0].sessionAffinity: unknown variant `clientip`, expected one of None, ClientIP",
        ),
        (
            with("sessionAffinityTimeoutSeconds: 5"),
            "services[0].sessionAffinityTimeoutSeconds: only a Service with",
        ),
        (
            with("sessionAffinity: ClientIP\n    sessionAffinityTimeoutSeconds: 86401"),
            "services[0].sessionAffinityTimeoutSeconds: `86401`: expected 1 to 86400",
        ),
        (
            with("internalTrafficPolicy: local"),
            "services[0].internalTrafficPolicy: unknown variant `local`, expected one of Cluster, Local",
        ),
        (with("externalTrafficPolicy: Node"), "services[0].externalTrafficPolicy: unknown variant `Node`"),
        (
            with("clusterIP: 10.96.0.1"),
            "services[0].clusterIP: unknown field `clusterIP`, expected one of name",
        ),
        (endpoint("{}"), "services[0].endpoints[0]: missing field `address` at line 10, column 9"),
        (
            endpoint("{ address: 169.254.1.1 }"),
            "services[0].endpoints[0].address: 169.254.1.1 is a link-local address, which no node, backend or Service can have at line 10, column 20",
        ),
        (
            endpoint("{ address: 10.9.9.9, node: z }"),
            "services[0].endpoints[0].node: `z` is not among the nodes",
        ),
        (
            endpoint("{ address: 10.244.1.4, node: node-b }"),
            "nodes[1].backends[0].address: 10.244.1.4 is claimed for `node-a` and for `node-b`, and counts for neither at line 5",
        ),
        (
            endpoint("{ address: 10.2.0.11, node: node-b }"),
            "nodes[1].address: 10.2.0.11 is claimed for `node-a` and for `node-b`, and counts for neither at line 4",
        ),
        (
            endpoint("{ address: 10.244.1.4, node: node-a, hostNetwork: true }"),
            "nodes[1].backends[0].address: 10.244.1.4 is an address that `node-a` shares; a backend there needs hostNetwork: true",
        ),
        (
            endpoint("{ address: 10.9.9.9, hostNetwork: true }"),
            "services[0].endpoints[0].node: missing; a hostNetwork",
        ),
        (endpoint("{ address: 10.9.9.9, ready: yess }"), "services[0].endpoints[0].ready: invalid boolean"),
        (endpoint("{ address: 10.9.9.9, ports: {} }"), "services[0].endpoints[0].ports: empty"),
        (
            endpoint("{ address: 10.9.9.9, ports: { http: 80 } }"),
            "services[0].endpoints[0].ports.http: `default/web` has no port `http`",
        ),
        (
            endpoint("{ address: 10.9.9.9, ports: { '': 0 } }"),
            "services[0].endpoints[0].ports.: `0` is no port",
        ),
        (
            endpoint("{ address: 10.9.9.9, ports: { '': [1] } }"),
            "services[0].endpoints[0].ports.: expected string scalar",
        ),
        (
            endpoint("{ address: 10.9.9.9, hints: { zone: [a] } }"),
            "services[0].endpoints[0].hints.zone: unknown field `zone`, expected one of zones, nodes",
        ),
        (
            endpoint("{ address: 10.9.9.9, hints: [a] }"),
            "services[0].endpoints[0].hints: expected mapping start",
        ),
        (
            endpoint("{ address: 10.9.9.9 }\n      - { address: 10.9.9.9, terminating: true }"),
            "services[0].endpoints[1].address: 10.9.9.9:80 stands there already for port `` at line 11, column 20",
        ),
        (
            two("{ port: 80 }", "{ name: a/a, ports: [{ port: 80 }] }"),
            "services[1].name: `a/a` is the name of services[0] already at line 10",
        ),
        (
            two("{ port: 80 }", "{ name: a/b, clusterIPs: [10.96.0.1], ports: [{ port: 80 }] }"),
            "services[1].clusterIPs[0]: 10.96.0.1 of port 80/tcp is a virtual address of Service `a/a` already at line 10",
        ),
        (
            two("{ port: 80, nodePort: 30001 }", "{ name: a/b, ports: [{ port: 80, nodePort: 30001 }] }"),
            "services[1].ports[0].nodePort: 30001/tcp is the node port of Service `a/a` already at line 10",
        ),
        (
            view("services: 7\n").unwrap_err().to_string(),
            "services: expected sequence start at line 6, column 11",
        ),
        (
            view("services: [{ name: web, ports: [{ port: 80 }] }]\n").unwrap_err().to_string(),
            "services[0].name: `web` names no Service: expected its namespace and name as in default/web",
        ),
    ];
    for (message, expected) in cases {
        assert!(message.contains(expected), "says: {message}\nexpected: {expected}");
        assert!(message.contains("line"), "no line in: {message}");
        assert!(!message.contains('\n'), "more than one line: {message}");
    }
}

/// What may be shared: one address by several ports, protocols and Services.
#[test]
fn accepts_what_kubernetes_allows() {
    let text = "services:
  - name: a/a
    clusterIPs: [10.96.0.1]
    loadBalancerIPs: [198.51.100.9]
    ports:
      - { name: tcp, port: 53, nodePort: 30053 }
      - { name: udp, port: 53, nodePort: 30053, protocol: UDP }
    endpoints:
      - { address: 10.2.0.12, node: node-b, ports: { tcp: 5301, udp: 5301 } }
      - { address: 10.2.0.12, node: node-b, ports: { tcp: 5302 } }
  - name: a/b
    clusterIPs: [10.96.0.2]
    loadBalancerIPs: [198.51.100.9]
    externalIPs: [198.51.100.9]
    ports: [{ name: '', port: 80 }]
    endpoints: [{ address: 10.244.1.4, node: node-a }, { address: 10.244.1.4, node: node-a, ports: { '': 81 } }]
  - name: a/headless
    clusterIPs: [None]
    ports: [{ port: 80 }]
";
    let view = view(text).unwrap();
    let backends: Vec<String> =
        view.node("node-b").unwrap().backends.iter().map(ToString::to_string).collect();
    assert_eq!(backends, ["10.2.0.12:5301/tcp", "10.2.0.12:5301/udp", "10.2.0.12:5302/tcp"]);
    let services = view.services.as_deref().unwrap_or_default();
    let addresses = services.iter().map(|service| (service.name.as_str(), service.cluster_ips.len()));
    assert_eq!(addresses.collect::<Vec<_>>(), [("a/a", 1), ("a/b", 1), ("a/headless", 0)]);
}

/// 10,000 Services of 10 endpoints, 250 pods a node. `--nocapture` shows how long it takes.
#[test]
fn reads_a_large_cluster() {
    let (mut yaml, mut services) = (String::from("nodes:\n"), String::from("services:\n"));
    for n in 0..400 {
        let _ = writeln!(yaml, "  - {{ name: node-{n}, address: 10.0.{}.{} }}", n / 250, n % 250 + 1);
    }
    for s in 0..10_000 {
        let _ = writeln!(
            services,
            "  - name: ns-{}/service-{s}\n    clusterIPs: [10.96.{}.{}]\n    ports: [{{ name: http, port: 80, \
             targetPort: 8080 }}]\n    endpoints:",
            s / 100,
            s / 250,
            s % 250 + 1
        );
        for e in 0..10 {
            let pod = s * 10 + e;
            let (node, last) = (pod % 400, pod / 400);
            let _ = writeln!(
                services,
                "      - {{ address: 10.{}.{}.{}, node: node-{node}, zone: zone-{}, ready: true, serving: true, \
                 terminating: false }}",
                100 + node / 250,
                node % 250,
                last + 1,
                node % 3
            );
        }
    }
    yaml += &services;
    let json = serde_json_of(&yaml).to_string();
    let mut views = Vec::new();
    for (name, text) in [("YAML", yaml), ("JSON", json)] {
        let begun = Instant::now();
        let view = parse(&text, false).unwrap();
        println!("{name}: {} bytes in {:?}", text.len(), begun.elapsed());
        assert_eq!((view.endpoints(), view.backends()), (Some(100_000), 100_000));
        views.push(view);
    }
    assert_eq!(views[0], views[1]);
}
