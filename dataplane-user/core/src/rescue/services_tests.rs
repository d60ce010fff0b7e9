use nodefence_common::Addr;

use super::*;
use crate::conntrack::status;
use crate::{cluster::parse, conntrack::Tuple, proxy::Mode};

const FILE: &str = "nodes:
  - { name: a, address: 10.2.0.11 }
  - { name: b, address: 10.2.0.12 }
  - { name: c, address: 10.2.0.13 }
services:
  - name: default/web
    clusterIPs: [10.96.0.10, 'fd00:96::a']
    externalIPs: [203.0.113.7]
    loadBalancerIPs: [198.51.100.9]
    ports:
      - { name: http, port: 80, targetPort: 8080, nodePort: 30080 }
      - { name: dns, port: 53, targetPort: 5300, nodePort: 30080, protocol: UDP }
    endpoints:
      - { address: 10.244.2.2, node: b }
      - { address: 10.244.2.3, node: b }
      - { address: 10.244.3.2, node: c }
      - { address: 10.244.3.9, node: c, ready: false }
      - { address: 'fd00:244:2::2', node: b }
  - name: default/near
    clusterIPs: [10.96.0.20]
    internalTrafficPolicy: Local
    externalTrafficPolicy: Local
    ports: [{ port: 80, targetPort: 8080, nodePort: 30081 }]
    endpoints:
      - { address: 10.244.1.2, node: a }
      - { address: 10.244.2.2, node: b }
      - { address: 10.244.3.2, node: c }
  - name: default/sticky
    clusterIPs: [10.96.0.30]
    sessionAffinity: ClientIP
    ports: [{ port: 80, targetPort: 8080 }]
    endpoints:
      - { address: 10.244.2.2, node: b }
      - { address: 10.244.3.2, node: c }
  - name: default/ended
    clusterIPs: [10.96.0.40]
    ports: [{ port: 80, targetPort: 8080 }]
    endpoints: [{ address: 10.244.2.9, node: b, ready: false }]
";

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A flow from a client to `to` that was sent on to `backend`.
fn flow(to: &str, backend: &str, protocol: u8) -> Flow {
    let (to, backend) = (socket(to), socket(backend));
    let client = if to.is_ipv4() { Addr::v4([192, 0, 2, 2]) } else { Addr::v6([9; 16]) };
    let tuple = |src: Addr, src_port, dst: Addr, dst_port| Tuple { src, dst, src_port, dst_port, protocol };
    Flow {
        orig: tuple(client, 40_000, to.ip().into(), to.port()),
        reply: tuple(backend.ip().into(), backend.port(), client, 40_000),
        tcp: None,
        liberal: false,
        status: status::DST_NAT,
        zone: None,
        id: 1,
        timeout: 60,
    }
}

/// What is found with these nodes flagged.
fn choice(flow: &Flow, flagged: &[&str]) -> Result<(usize, usize), NoChoice> {
    let view = parse(FILE, false).unwrap();
    let flagged = flagged.iter().map(|name| view.index(name).unwrap()).collect();
    let proxy = Proxy::of(&view, "a", Mode::Nftables);
    let found = Choices::default().of(
        &VirtualAddresses::new(view.services.as_deref().unwrap()),
        &view,
        &proxy,
        flow,
        &flagged,
    );
    found.map(|choice| (choice.flagged, choice.usable))
}

#[test]
fn every_virtual_address_is_known() {
    for to in ["10.96.0.10:80", "203.0.113.7:80", "198.51.100.9:80", "10.2.0.11:30080", "192.0.2.1:30080"] {
        // Two of the three ready endpoints are on b.
        assert_eq!(choice(&flow(to, "10.244.2.2:8080", 6), &["b"]), Ok((2, 3)), "{to}");
    }
    assert_eq!(choice(&flow("10.96.0.10:53", "10.244.2.3:5300", 17), &["b"]), Ok((2, 3)));
    assert_eq!(choice(&flow("192.0.2.1:30080", "10.244.2.3:5300", 17), &["b"]), Ok((2, 3)));
}

#[test]
fn what_is_no_service_s_is_left_alone() {
    for to in ["10.96.0.10:81", "10.96.0.11:80", "192.0.2.1:30082", "[fd00:96::b]:80"] {
        let backend = if to.starts_with('[') { "[fd00:244:2::2]:8080" } else { "10.244.2.2:8080" };
        assert_eq!(choice(&flow(to, backend, 6), &["b"]), Err(NoChoice::Unknown), "{to}");
    }
    assert_eq!(choice(&flow("10.96.0.10:80", "10.244.2.2:8080", 17), &["b"]), Err(NoChoice::Unknown));
    assert_eq!(choice(&flow("10.96.0.10:80", "10.244.2.2:8080", 1), &["b"]), Err(NoChoice::Unknown));
    // Somebody else's rule, on a port that is a node port elsewhere.
    assert_eq!(choice(&flow("192.0.2.1:30080", "10.244.2.2:9999", 6), &["b"]), Err(NoChoice::Unknown));
}

#[test]
fn only_what_was_translated_moves() {
    // IPVS sets no NAT status. And a masqueraded source is no other destination.
    for mark in [0, status::SRC_NAT, status::SRC_NAT | status::DST_NAT | status::ASSURED] {
        let mut balanced = flow("10.96.0.10:80", "10.244.2.2:8080", 6);
        balanced.status = mark;
        assert_eq!(choice(&balanced, &["b"]), Ok((2, 3)));
        let mut direct = flow("10.244.2.2:8080", "10.244.2.2:8080", 6);
        direct.status = mark;
        assert_eq!(choice(&direct, &["b"]), Err(NoChoice::Untranslated));
    }
}

#[test]
fn what_counts_is_of_the_same_kind() {
    // All endpoints are on flagged nodes: they are exempt by now.
    let to_web = flow("10.96.0.10:80", "10.244.2.2:8080", 6);
    assert_eq!(choice(&to_web, &["b", "c"]), Ok((3, 3)));
    // The other endpoints are of another IP version.
    assert_eq!(choice(&flow("[fd00:96::a]:80", "[fd00:244:2::2]:8080", 6), &["b"]), Ok((1, 1)));
    assert_eq!(choice(&flow("10.96.0.40:80", "10.244.2.9:8080", 6), &["b"]), Err(NoChoice::NothingElse));
    // A flow to an endpoint that is not used any more finds all that are.
    assert_eq!(choice(&flow("10.96.0.10:80", "10.244.3.9:8080", 6), &["c"]), Ok((1, 3)));
}

#[test]
fn which_policy_applied_is_seen_by_where_it_went() {
    // From outside: local endpoints alone.
    assert_eq!(choice(&flow("192.0.2.1:30081", "10.244.1.2:8080", 6), &["b"]), Ok((0, 1)));
    assert_eq!(choice(&flow("192.0.2.1:30081", "10.244.1.2:8080", 6), &["a"]), Ok((1, 1)));
    // From a pod or the node to a node port: all endpoints.
    assert_eq!(choice(&flow("10.2.0.11:30081", "10.244.2.2:8080", 6), &["b"]), Ok((1, 3)));
}

#[test]
fn a_client_that_sticks_to_an_endpoint_is_told_of() {
    let view = parse(FILE, false).unwrap();
    let proxy = Proxy::of(&view, "a", Mode::Nftables);
    let sticky_endpoint = |to| {
        let flow = flow(to, "10.244.2.2:8080", 6);
        let flagged = std::iter::once(view.index("b").unwrap()).collect();
        Choices::default()
            .of(&VirtualAddresses::new(view.services.as_deref().unwrap()), &view, &proxy, &flow, &flagged)
            .unwrap()
            .sticky_endpoint
    };
    let socket = socket("10.244.2.2:8080");
    let endpoint = proxy::Endpoint { service: "default/sticky", port: "", protocol: Protocol::Tcp, socket };
    assert_eq!(sticky_endpoint("10.96.0.30:80"), Some(endpoint));
    assert_eq!(sticky_endpoint("10.96.0.10:80"), None);
}
