use std::net::SocketAddr;

use super::{local, nodes, view};
use crate::{
    cluster::ClusterView,
    conntrack::{Flow, TcpState, Tuple},
    plan::{
        ExemptIndex, VirtualAddresses,
        audit::{Addresses, Found, Kind, MayDelete, Mend, StaleFlows, Subject},
        exemptions,
    },
};

const UDP: u8 = 17;
const TCP: u8 = 6;
const SCTP: u8 = 132;

fn services() -> ClusterView {
    view(
        "services:
  - name: default/dns
    clusterIPs: [10.96.0.10, 'fd00:96::a']
    externalIPs: [192.0.2.7]
    ports: [{ name: dns, port: 53, targetPort: 5300, protocol: udp, nodePort: 30053 }, { name: tcp, port: 53, targetPort: 5300 }]
    endpoints:
      - { address: 10.1.2.1, node: b }
      - { address: 10.1.3.1, node: c, ready: false, serving: true, terminating: true }
      - { address: 10.1.3.2, node: c, ready: false }
      - { address: 'fd00:1:2::1', node: b }
  - name: default/host
    clusterIPs: [10.96.0.20]
    ports: [{ port: 80, targetPort: 9100 }]
    endpoints: [{ address: 10.0.0.3, node: c }, { address: 10.1.2.9, node: b, ports: {'': 9100} }]
  - name: default/empty
    clusterIPs: [10.96.0.30]
    ports: [{ port: 53, protocol: udp }]
    endpoints: [{ address: 10.1.2.1, node: b, ready: false, serving: false }]
",
    )
}

fn flow(protocol: u8, to: &str, backend: &str, tcp: Option<TcpState>) -> Flow {
    let (to, backend): (SocketAddr, SocketAddr) = (to.parse().unwrap(), backend.parse().unwrap());
    let client: SocketAddr =
        if to.is_ipv4() { "192.0.2.200:4000" } else { "[2001:db8::2]:4000" }.parse().unwrap();
    let tuple = |src: SocketAddr, dst: SocketAddr| Tuple {
        src: src.ip().into(),
        dst: dst.ip().into(),
        src_port: src.port(),
        dst_port: dst.port(),
        protocol,
    };
    Flow {
        orig: tuple(client, to),
        reply: tuple(backend, client),
        tcp,
        liberal: false,
        status: 0x1be,
        zone: None,
        id: 7,
        timeout: 100,
    }
}

fn found(flagged: &[&str], may_delete: MayDelete, flow: &Flow) -> Found {
    let (view, local) = (services(), local());
    let flagged = nodes(&view, flagged);
    let exemptions = exemptions(&view, &ExemptIndex::new(&view), "a", None, &flagged);
    let services = view.services.as_deref().unwrap();
    let all = VirtualAddresses::new(services);
    let addresses = Addresses::new(services, &all, &local);
    let mut out = Found::default();
    StaleFlows::new(&view, &addresses, &flagged, &exemptions, may_delete).look(flow, &mut out);
    out
}

fn kind(flagged: &[&str], flow: &Flow) -> Option<Kind> {
    let found = found(flagged, MayDelete::default(), flow);
    assert!(found.differences.len() <= 1);
    found.differences.first().map(|difference| difference.kind)
}

#[test]
fn a_udp_flow_goes_to_an_endpoint_that_serves_or_is_stale() {
    const STALE: Option<Kind> = Some(Kind::StaleUdp);
    for (protocol, to, backend, expected) in [
        (UDP, "10.96.0.10:53", "10.1.2.1:5300", None),
        // It ends, and serves.
        (UDP, "10.96.0.10:53", "10.1.3.1:5300", None),
        // Serving is what is not said of it.
        (UDP, "10.96.0.10:53", "10.1.3.2:5300", None),
        (UDP, "10.96.0.10:53", "10.1.9.9:5300", STALE),
        (UDP, "10.96.0.10:53", "10.1.2.1:5301", STALE),
        // Begun before there was a rule for it: the black hole of kubernetes issue 139628.
        (UDP, "10.96.0.10:53", "10.96.0.10:53", STALE),
        (UDP, "192.0.2.7:53", "10.1.9.9:5300", STALE),
        (UDP, "[fd00:96::a]:53", "[fd00:1:2::1]:5300", None),
        (UDP, "[fd00:96::a]:53", "[fd00:1:2::2]:5300", STALE),
        // Node ports are those of this node's addresses; another node's are that node's matter.
        (UDP, "10.0.0.1:30053", "10.1.9.9:5300", STALE),
        (UDP, "10.0.0.1:30053", "10.1.2.1:5300", None),
        (UDP, "10.0.0.2:30053", "10.0.0.2:30053", None),
        // TCP ends by itself, other Services' addresses say nothing.
        (TCP, "10.96.0.10:53", "10.1.9.9:5300", None),
        (SCTP, "10.96.0.10:53", "10.1.9.9:5300", None),
        (UDP, "10.96.0.11:53", "10.1.9.9:5300", None),
        (UDP, "10.96.0.10:54", "10.1.9.9:5300", None),
        (UDP, "8.8.8.8:53", "8.8.8.8:53", None),
        // Scaled to nothing: a stale flow goes on to a backend that is gone, a flow that is not translated is refused.
        (UDP, "10.96.0.30:53", "10.1.2.1:53", STALE),
        (UDP, "10.96.0.30:53", "10.96.0.30:53", None),
    ] {
        assert_eq!(kind(&[], &flow(protocol, to, backend, None)), expected, "{protocol} {to} {backend}");
    }
    let stale = flow(UDP, "10.96.0.10:53", "10.1.9.9:5300", None);
    let found = found(&[], MayDelete::default(), &stale);
    let difference = &found.differences[0];
    assert_eq!(difference.service.as_deref(), Some("default/dns:dns"));
    assert_eq!(difference.mend, Some(Mend::Forget(stale)));
    // The next reading knows it again, though its timeout and status have changed.
    let later = Flow { status: 0, timeout: 3, ..stale };
    assert_eq!(difference.subject, Subject::flow(&later));
    assert_ne!(difference.subject, Subject::flow(&Flow { id: 8, ..stale }));
}

#[test]
fn flows_to_flagged_nodes_are_found_but_for_what_is_exempt() {
    const FLAGGED: Option<Kind> = Some(Kind::FlaggedFlow);
    let established = Some(TcpState::Established);
    for (flagged, flow, expected) in [
        (&["b"][..], flow(UDP, "10.96.0.10:53", "10.1.2.1:5300", None), None),
        (&[], flow(UDP, "10.96.0.10:53", "10.1.2.1:5300", None), None),
        (&["c"], flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", established), FLAGGED),
        (&["c"], flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", Some(TcpState::SynSent)), FLAGGED),
        (&["c"], flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", Some(TcpState::Close)), None),
        (&["c"], flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", Some(TcpState::TimeWait)), None),
        (&["b"], flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", established), None),
        // Not of a Service: ssh to the node, a client that speaks to the backend itself.
        (&["c"], flow(TCP, "10.0.0.3:22", "10.0.0.3:22", established), None),
        (&["c"], flow(TCP, "10.0.0.3:9100", "10.0.0.3:9100", established), None),
        (&["c"], flow(UDP, "10.96.0.99:1", "10.0.0.3:9100", None), None),
        // All of its address is a pod's, whatever the Service was.
        (&["b"], flow(SCTP, "10.96.0.99:1", "10.1.2.9:1", None), FLAGGED),
        // Both nodes are flagged: nothing else is left, so the backend is exempt.
        (&["b", "c"], flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", established), None),
    ] {
        assert_eq!(kind(flagged, &flow), expected, "{flagged:?} {flow}");
    }
    let tcp = flow(TCP, "10.96.0.20:80", "10.0.0.3:9100", established);
    let udp = flow(UDP, "10.96.0.99:1", "10.1.2.9:1", None);
    for (may_delete, tcp_goes, udp_goes) in [
        (MayDelete { tcp: false, datagrams: false }, false, false),
        (MayDelete { tcp: false, datagrams: true }, false, true),
        (MayDelete { tcp: true, datagrams: true }, true, true),
    ] {
        let goes = |flow: &Flow| {
            found(&["b"], may_delete, flow).differences.first().is_some_and(|d| d.mend.is_some())
        };
        let of_c = |flow: &Flow| {
            found(&["c"], may_delete, flow).differences.first().is_some_and(|d| d.mend.is_some())
        };
        assert_eq!((of_c(&tcp), goes(&udp)), (tcp_goes, udp_goes));
    }
}
