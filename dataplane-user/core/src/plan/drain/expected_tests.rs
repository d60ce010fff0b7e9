use std::{net::SocketAddr, sync::Arc};

use super::{WantedDestinations, expected::Endpoint};
use crate::{
    cluster::parse,
    ipvs::{Family, Protocol, ServiceKey},
    ledger::Pair,
};

const TEXT: &str = "nodes:
  - { name: a, address: 10.0.0.1 }
  - { name: b, address: 10.0.0.2 }
services:
  - name: x/web
    clusterIPs: [10.96.0.1, 'fd00:96::1']
    externalIPs: [192.0.2.7]
    loadBalancerIPs: [192.0.2.8]
    externalTrafficPolicy: Local
    ports:
      - { name: web, port: 80, targetPort: 8080, nodePort: 30080 }
      - { name: dns, port: 53, protocol: udp }
    endpoints:
      - { address: 10.1.0.1, node: a }
      - { address: 10.1.0.2, node: b }
      - { address: 10.1.0.3, node: b, ready: false, serving: true, terminating: true }
      - { address: 10.1.0.4, node: b, ready: false }
      - { address: 10.1.0.5, node: b, ports: { web: 8081 } }
      - { address: 'fd00:1::1', node: b, ready: false, serving: true, terminating: true }
";

#[test]
fn kube_proxy_wants_what_it_would_use() {
    let wanted = WantedDestinations::of(&Arc::new(parse(TEXT, false).unwrap()), &"a".into());
    let left = |service: &str, protocol, destination: &str| {
        let service = ServiceKey::Address { address: service.parse().unwrap(), protocol };
        wanted.endpoint(&Pair { service, destination: destination.parse::<SocketAddr>().unwrap() })
    };
    let (used, ending, gone) = (Some(Endpoint::Used), Some(Endpoint::Ending), Some(Endpoint::Gone));
    let (tcp, udp) = (Protocol::TCP, Protocol::UDP);
    for (service, protocol, destination, expected) in [
        ("10.96.0.1:80", tcp, "10.1.0.1:8080", used),
        ("10.96.0.1:80", tcp, "10.1.0.2:8080", used),
        ("10.96.0.1:80", tcp, "10.1.0.3:8080", ending),
        ("10.96.0.1:80", tcp, "10.1.0.4:8080", ending),
        ("10.96.0.1:80", tcp, "10.1.0.5:8080", gone),
        ("10.96.0.1:80", tcp, "10.1.0.5:8081", used),
        ("10.96.0.1:80", tcp, "10.1.0.9:8080", gone),
        // Nothing is ready: what serves to its end is used.
        ("[fd00:96::1]:80", tcp, "[fd00:1::1]:8080", used),
        ("10.96.0.1:53", udp, "10.1.0.2:53", used),
        // An endpoint that names ports of its own has no others.
        ("10.96.0.1:53", udp, "10.1.0.5:53", gone),
        // From outside only the endpoint on the node itself.
        ("192.0.2.7:80", tcp, "10.1.0.1:8080", used),
        ("192.0.2.7:80", tcp, "10.1.0.2:8080", ending),
        ("192.0.2.8:80", tcp, "10.1.0.2:8080", ending),
        ("10.0.0.1:30080", tcp, "10.1.0.1:8080", used),
        ("10.0.0.1:30080", tcp, "10.1.0.2:8080", ending),
        // Not known: nothing is said of it.
        ("10.0.0.1:30080", udp, "10.1.0.2:8080", None),
        ("10.96.0.1:53", tcp, "10.1.0.3:53", None),
        ("10.96.0.2:80", tcp, "10.1.0.3:8080", None),
    ] {
        assert_eq!(left(service, protocol, destination), expected, "{service} {protocol:?} {destination}");
    }
    let marked = ServiceKey::Mark { family: Family::V4, mark: 7 };
    let marked = Pair { service: marked, destination: "10.1.0.3:8080".parse().unwrap() };
    assert_eq!(wanted.endpoint(&marked), None);
}

#[test]
fn without_services_nothing_is_said() {
    let view = parse("nodes: [{ name: a, address: 10.0.0.1 }]\n", false).unwrap();
    let wanted = WantedDestinations::of(&Arc::new(view), &"a".into());
    let service = ServiceKey::Address { address: ([10, 96, 0, 1], 80).into(), protocol: Protocol::TCP };
    assert_eq!(wanted.endpoint(&Pair { service, destination: ([10, 1, 0, 1], 80).into() }), None);
}
