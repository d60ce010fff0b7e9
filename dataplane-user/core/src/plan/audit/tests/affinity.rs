use std::net::IpAddr;

use super::{nodes, texts, view};
use crate::{
    cluster::{ClusterView, Protocol},
    plan::{
        ExemptIndex,
        audit::{Affinities, Found, Mend, Subject},
        exemptions,
    },
    proxy::Endpoint,
};

/// `web` has pods on `b` and `c`, `host` a port of `c` itself and a pod of `b`; neither is said to have affinity.
fn services() -> ClusterView {
    view(
        "services:
  - name: default/web
    clusterIPs: [10.96.0.10]
    ports: [{ name: http, port: 80, targetPort: 8080 }, { name: dns, port: 53, protocol: udp }]
    endpoints: [{ address: 10.1.2.1, node: b }, { address: 10.1.3.1, node: c }]
  - name: default/host
    clusterIPs: [10.96.0.20]
    ports: [{ port: 80, targetPort: 9100 }]
    endpoints: [{ address: 10.0.0.3, node: c }, { address: 10.1.2.9, node: b }]
",
    )
}

fn with<T>(flagged: &[&str], deletes: bool, run: impl FnOnce(Affinities<'_>) -> T) -> T {
    let view = services();
    let flagged = nodes(&view, flagged);
    let exemptions = exemptions(&view, &ExemptIndex::new(&view), "a", None, &flagged);
    run(Affinities::new(&view, &flagged, &exemptions, deletes))
}

fn endpoint(service: &'static str, port: &'static str, socket: &str) -> Endpoint<'static> {
    let protocol = if port == "dns" { Protocol::Udp } else { Protocol::Tcp };
    Endpoint { service, port, protocol, socket: socket.parse().unwrap() }
}

fn found(flagged: &[&str], deletes: bool, at: &Endpoint<'_>, clients: &[&str]) -> Found {
    let mut found = Found::default();
    with(flagged, deletes, |affinities| {
        for client in clients {
            affinities.look(at, client.parse::<IpAddr>().unwrap(), &mut found);
        }
    });
    found
}

#[test]
fn clients_that_stick_to_flagged_nodes_are_found_but_for_what_is_exempt() {
    for (flagged, at, is_found) in [
        (&["b"][..], endpoint("default/web", "http", "10.1.2.1:8080"), true),
        (&["b"], endpoint("default/web", "dns", "10.1.2.1:53"), true),
        // The whole address is the pod's, and the Service may be one that the view does not know any more.
        (&["b"], endpoint("default/gone", "", "10.1.2.1:7"), true),
        (&["b"], endpoint("default/web", "http", "10.1.3.1:8080"), false),
        (&[], endpoint("default/web", "http", "10.1.2.1:8080"), false),
        // Of the node's own address only the port counts, in its protocol.
        (&["c"], endpoint("default/host", "", "10.0.0.3:9100"), true),
        (&["c"], endpoint("default/host", "dns", "10.0.0.3:9100"), false),
        (&["c"], endpoint("default/host", "", "10.0.0.3:22"), false),
        // Nothing else is left: the port is exempt.
        (&["b", "c"], endpoint("default/host", "", "10.0.0.3:9100"), false),
        (&["b", "c"], endpoint("default/web", "http", "10.1.2.1:8080"), false),
    ] {
        let found = found(flagged, true, &at, &["192.0.2.1"]);
        assert_eq!(found.differences.len(), usize::from(is_found), "{flagged:?} {at:?}");
    }
}

#[test]
fn each_client_is_one_and_all_of_an_endpoint_go_together() {
    let at = endpoint("default/web", "http", "10.1.2.1:8080");
    let both = found(&["b"], true, &at, &["192.0.2.1", "2001:db8::1"]);
    let expected = ["192.0.2.1", "2001:db8::1"]
        .map(|client| format!("flagged-affinity client {client} of default/web:http tcp -> 10.1.2.1:8080"));
    assert_eq!(texts(&both), expected);
    for difference in &both.differences {
        assert_eq!(difference.mend, Some(Mend::ForgetClient));
        assert_eq!(difference.service.as_deref(), Some("default/web:http"));
        assert_eq!(difference.detail, "sticks to node b, which is flagged");
        let Subject::Client(client) = &difference.subject else { panic!("{difference:?}") };
        assert_eq!(client.endpoint(), at);
    }
    // A client of another Service is another difference. Where the agent does not delete clients, it is reported all the same.
    let other = found(&["b"], false, &endpoint("default/web2", "http", "10.1.2.1:8080"), &["192.0.2.1"]);
    assert_ne!(other.differences[0].subject, both.differences[0].subject);
    assert_eq!(other.differences[0].mend, None);
}

/// xt_recent's lists are found by their names alone, and the source may not say which Services have affinity.
#[test]
fn all_services_endpoints_there_may_have_clients() {
    let sockets = |flagged: &[&str]| {
        with(flagged, true, |affinities| {
            affinities
                .endpoints()
                .map(|one| format!("{}/{} {}", one.service, one.port, one.socket))
                .collect::<Vec<_>>()
        })
    };
    let of_b =
        ["default/web/http 10.1.2.1:8080", "default/web/dns 10.1.2.1:53", "default/host/ 10.1.2.9:9100"];
    let mut found = sockets(&["b"]);
    let mut expected = of_b.map(str::to_owned);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(sockets(&[]), [""; 0]);
    assert!(with(&[], true, |affinities| affinities.is_empty()));
}
