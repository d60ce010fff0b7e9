use std::{collections::BTreeMap, net::SocketAddr};

use proptest::{prelude::*, sample::Index};

use super::{Table, any_view, ipvs_proxy, key, local, nodes, programmed, texts, view};
use crate::{
    cluster::{ClusterView, NodeSet},
    ipvs::{Change, Destination, Protocol, ServiceKey},
    ledger::{Entry, Pair, Phase},
    plan::{
        VirtualAddresses,
        audit::{Addresses, Cidr, Cluster, Difference, Found, Grace, Kind, Mend, Servers, Subject},
    },
};

/// What is known of the cluster, beside the tables.
#[derive(Default)]
struct Beside {
    flagged: NodeSet,
    ledger: BTreeMap<Pair, Entry>,
    excluded: Vec<Cidr>,
}

fn judge(view: &ClusterView, table: &Table, beside: &Beside) -> Found {
    of_servers(view, beside, |servers, out| {
        for (key, destinations) in table {
            servers.look(*key, destinations, out);
        }
        servers.finish(out);
    })
}

fn of_servers(view: &ClusterView, beside: &Beside, look: impl FnOnce(&mut Servers<'_>, &mut Found)) -> Found {
    let (local, mut out) = (local(), Found::default());
    let services = view.services.as_deref().unwrap_or_default();
    let all = VirtualAddresses::new(services);
    let addresses = Addresses::new(services, &all, &local);
    let cluster = Cluster {
        view,
        proxy: ipvs_proxy(view),
        flagged: &beside.flagged,
        ledger: &beside.ledger,
        excluded: &beside.excluded,
    };
    look(&mut Servers::new(cluster, &addresses), &mut out);
    out
}

/// A Service with endpoints on `b` and `c`, and one that ends.
fn web() -> ClusterView {
    view(
        "services:
  - name: default/web
    clusterIPs: [10.96.0.1]
    ports: [{ name: http, port: 80, targetPort: 8080, nodePort: 30080 }, { name: dns, port: 53, protocol: udp }]
    endpoints:
      - { address: 10.1.2.1, node: b }
      - { address: 10.1.3.1, node: c }
      - { address: 10.1.3.2, node: c, ready: false, serving: true, terminating: true }
",
    )
}

const WEB: &str = "10.96.0.1:80";

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn pair(service: ServiceKey, destination: &str) -> Pair {
    Pair { service, destination: socket(destination) }
}

fn set(table: &mut Table, pair: Pair, change: impl FnOnce(&mut Destination)) {
    let destinations = table.get_mut(&pair.service).unwrap();
    match destinations.iter_mut().find(|destination| destination.address == pair.destination) {
        Some(destination) => change(destination),
        None => {
            let mut new = Destination::new(pair.destination, 1);
            change(&mut new);
            destinations.push(new);
        }
    }
}

fn remove(table: &mut Table, pair: Pair) {
    table.get_mut(&pair.service).unwrap().retain(|destination| destination.address != pair.destination);
}

fn only(found: &Found) -> &Difference {
    assert_eq!(found.differences.len(), 1, "{:?}", texts(found));
    &found.differences[0]
}

#[test]
fn a_real_server_that_outlived_its_endpoint() {
    let view = web();
    let (tcp, udp) = (key(WEB, Protocol::TCP), key("10.96.0.1:53", Protocol::UDP));
    let gone = |service, weight, active, inactive| {
        let mut table = programmed(&view);
        set(&mut table, pair(service, "10.1.9.9:8080"), |new| {
            (new.weight, new.active, new.inactive, new.persistent) = (weight, active, inactive, 3);
        });
        only(&judge(&view, &table, &Beside::default())).clone()
    };
    let delete = |service| Some(Mend::Ipvs(Change::DeleteDestination(service, socket("10.1.9.9:8080"))));
    for (service, weight, active, inactive, grace, mend) in [
        (tcp, 1, 0, 0, Grace::Sync, delete(tcp)),
        (tcp, 1, 5, 0, Grace::Sync, delete(tcp)),
        // Templates alone do not hold kube-proxy up.
        (tcp, 0, 0, 0, Grace::Termination, delete(tcp)),
        (tcp, 0, 1, 0, Grace::Draining, None),
        (tcp, 0, 0, 1, Grace::Draining, None),
        (udp, 0, 0, 1, Grace::Sync, delete(udp)),
        (udp, 1, 0, 0, Grace::Sync, delete(udp)),
    ] {
        let found = gone(service, weight, active, inactive);
        assert_eq!(
            (found.kind, found.grace, &found.mend),
            (Kind::StaleDestination, grace, &mend),
            "{found:?}"
        );
        assert_eq!(found.subject, Subject::Pair(pair(service, "10.1.9.9:8080")));
    }
    assert_eq!(gone(tcp, 1, 0, 0).service.as_deref(), Some("default/web:http"));
    assert_eq!(gone(udp, 1, 2, 1).detail, "is no endpoint of the Service; weight 1, 3 connections");
}

/// The Service still names it: its connections may go on.
#[test]
fn what_still_runs_is_ended_gently() {
    let view = web();
    let leaving = pair(key(WEB, Protocol::TCP), "10.1.3.2:8080");
    for (active, mended) in [(0, None), (4, Some(0))] {
        let mut table = programmed(&view);
        set(&mut table, leaving, |new| (new.active, new.upper_threshold) = (active, 7));
        let found = judge(&view, &table, &Beside::default());
        let found = only(&found);
        assert_eq!(found.kind, Kind::StaleDestination);
        match (&found.mend, mended) {
            (Some(Mend::Ipvs(Change::DeleteDestination(service, address))), None) => {
                assert_eq!((*service, *address), (leaving.service, leaving.destination));
            }
            (Some(Mend::Ipvs(Change::SetDestination(service, new))), Some(weight)) => {
                assert_eq!(
                    (*service, new.address, new.weight),
                    (leaving.service, leaving.destination, weight)
                );
                assert_eq!(new.upper_threshold, 7, "what is not meant to change stays");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn weights_and_gaps_that_the_ledger_explains() {
    let view = web();
    let service = key(WEB, Protocol::TCP);
    let (on_b, on_c) = (pair(service, "10.1.2.1:8080"), pair(service, "10.1.3.1:8080"));
    let entry = |node: &str, phase| Entry {
        node: node.into(),
        phase,
        original: Destination::new(on_b.destination, 1),
    };
    let mut lowered = programmed(&view);
    set(&mut lowered, on_b, |found| found.weight = 0);
    let mut deleted = programmed(&view);
    remove(&mut deleted, on_b);

    let nothing = Beside::default();
    let found = judge(&view, &lowered, &nothing);
    let mended = Mend::Ipvs(Change::DeleteDestination(service, on_b.destination));
    assert_eq!((only(&found).kind, only(&found).mend.clone()), (Kind::StrayWeight, Some(mended)));
    // kube-proxy may be draining it: a weight that is raised would stay.
    for connections in [(1, 0), (0, 1)] {
        let mut drains = lowered.clone();
        set(&mut drains, on_b, |found| (found.active, found.inactive) = connections);
        let found = judge(&view, &drains, &nothing);
        assert_eq!((only(&found).kind, only(&found).mend.clone()), (Kind::StrayWeight, None));
    }
    let found = judge(&view, &deleted, &nothing);
    let mended = Mend::Ipvs(Change::NewDestination(service, Destination::new(on_b.destination, 1)));
    assert_eq!((only(&found).kind, only(&found).mend.clone()), (Kind::MissingDestination, Some(mended)));

    // Node b is flagged: what becomes of it is the drain's.
    let flagged = Beside {
        flagged: nodes(&view, &["b"]),
        ledger: BTreeMap::from([(on_b, entry("b", Phase::Lowered))]),
        ..Beside::default()
    };
    let left: Vec<Kind> = judge(&view, &lowered, &flagged).differences.iter().map(|d| d.kind).collect();
    // Its other pairs were not drained.
    assert_eq!(left, [Kind::FlaggedDestination; 3], "two of the node port, one of the UDP port");
    let found = judge(&view, &deleted, &flagged);
    assert!(found.differences.iter().all(|d| d.kind == Kind::FlaggedDestination));

    // All nodes are flagged: existing destinations are exempt, and a missing one is reported.
    let all = Beside { flagged: nodes(&view, &["b", "c"]), ..Beside::default() };
    assert_eq!(texts(&judge(&view, &programmed(&view), &all)), [""; 0]);
    assert_eq!(only(&judge(&view, &deleted, &all)).kind, Kind::MissingDestination);

    // The node is flagged no more, and the destination was not restored: it is found, and left to the drain, which owns it.
    let late = Beside {
        ledger: BTreeMap::from([(on_b, entry("b", Phase::Deleted)), (on_c, entry("gone", Phase::Lowered))]),
        ..Beside::default()
    };
    for (table, kind) in [(&lowered, Kind::StrayWeight), (&deleted, Kind::MissingDestination)] {
        let found = judge(&view, table, &late);
        assert_eq!((only(&found).kind, &only(&found).mend), (kind, &None));
    }
}

#[test]
fn flagged_nodes_are_out_where_there_are_others() {
    let view = web();
    let beside = |names: &[&str]| Beside { flagged: nodes(&view, names), ..Beside::default() };
    let service = key(WEB, Protocol::TCP);
    let on_b = pair(service, "10.1.2.1:8080");
    let mut table: Table = programmed(&view).into_iter().filter(|(key, _)| *key == service).collect();
    let of_service = |table: &Table| {
        let found = judge(&view, table, &beside(&["b"]));
        let mut texts = texts(&found);
        texts.retain(|text| text.starts_with("flagged"));
        texts
    };
    assert_eq!(of_service(&table), ["flagged-destination TCP 10.96.0.1:80 -> 10.1.2.1:8080"]);
    set(&mut table, on_b, |found| (found.weight, found.inactive) = (0, 1));
    assert_eq!(of_service(&table).len(), 1, "a connection");
    set(&mut table, on_b, |found| (found.inactive, found.persistent) = (0, 1));
    assert_eq!(of_service(&table), [""; 0], "a template is told of by itself");
    // By mark and by another's address as well; host-network ones by their port alone.
    let mark = ServiceKey::Mark { family: crate::ipvs::Family::V4, mark: 7 };
    let others = Destination::new(socket("10.7.7.7:1"), 1);
    for (service, address, out) in [
        (mark, "10.1.2.1:0", 1),
        (mark, "10.0.0.3:9100", 0),
        (key("10.55.0.1:80", Protocol::UDP), "10.1.2.1:9", 1),
    ] {
        let on_node = Destination::new(socket(address), 1);
        table.insert(service, vec![others.clone(), on_node]);
        assert_eq!(of_service(&table).len(), out, "{service} {address}");
        table.remove(&service);
    }
    let host = [
        ("10.0.0.3:9100", Protocol::TCP, 1),
        ("10.0.0.3:9100", Protocol::UDP, 0),
        ("10.0.0.3:22", Protocol::TCP, 0),
    ];
    for (address, protocol, out) in host {
        let table = Table::from([(
            key("10.55.0.1:80", protocol),
            vec![others.clone(), Destination::new(socket(address), 1)],
        )]);
        let found = judge(&view, &table, &beside(&["c"]));
        let count = found.differences.iter().filter(|d| d.kind == Kind::FlaggedDestination).count();
        assert_eq!(count, out, "{address} {protocol}");
    }
}

/// The drain leaves such a Service alone.
#[test]
fn a_service_that_is_left_out_has_its_destinations_on_flagged_nodes() {
    let view = view(
        "services:
  - name: default/web
    clusterIPs: [10.96.0.1]
    mode: off
    ports: [{ name: http, port: 80, targetPort: 8080 }]
    endpoints: [{ address: 10.1.2.1, node: b }, { address: 10.1.3.1, node: c }]
",
    );
    let beside = Beside { flagged: nodes(&view, &["b"]), ..Beside::default() };
    let mut table = programmed(&view);
    assert_eq!(texts(&judge(&view, &table, &beside)), [""; 0]);
    let on_b = pair(key(WEB, Protocol::TCP), "10.1.2.1:8080");
    set(&mut table, on_b, |found| found.weight = 0);
    assert_eq!(only(&judge(&view, &table, &beside)).kind, Kind::StrayWeight);
    table.values_mut().for_each(|all| all.retain(|one| one.address != on_b.destination));
    assert_eq!(only(&judge(&view, &table, &beside)).kind, Kind::MissingDestination);
}

#[test]
fn templates_of_flagged_nodes_are_found_where_there_are_others() {
    let view = web();
    let service = key(WEB, Protocol::TCP);
    let [b, c] = ["10.1.2.1:8080", "10.1.3.1:8080"].map(|address| Destination {
        persistent: 3,
        weight: 0,
        ..Destination::new(socket(address), 0)
    });
    let live = Destination { weight: 1, ..c.clone() };
    let fault = ["flagged-affinity TCP 10.96.0.1:80 -> 10.1.2.1:8080"];
    for (flagged, destinations, expected) in [
        (&["b"][..], vec![b.clone(), live.clone()], &fault[..]),
        (&["b"], vec![Destination { weight: 1, ..b.clone() }, live.clone()], &fault),
        (&["b"], vec![Destination { persistent: 0, inactive: 1, ..b.clone() }, live.clone()], &[]),
        (&[], vec![b.clone(), live.clone()], &[]),
        // No other destination has weight, or no other is left: the flagged ones stay.
        (&["b"], vec![b.clone(), c.clone()], &[]),
        (&["b", "c"], vec![b.clone(), live.clone()], &[]),
    ] {
        let beside = Beside { flagged: nodes(&view, flagged), ..Beside::default() };
        let found = of_servers(&view, &beside, |servers, out| {
            servers.look_at_templates(service, &destinations, out);
        });
        assert_eq!(texts(&found), expected, "{flagged:?} {destinations:?}");
        let mends = found.differences.iter().any(|difference| difference.mend.is_some());
        assert!(!mends, "they are the drain's");
    }
}

#[test]
fn servers_that_nobody_or_somebody_else_has() {
    let view = web();
    let mut table = programmed(&view);
    for address in ["10.99.0.1:80", "10.96.0.1:81", "192.168.7.1:31000", "10.0.0.9:30080"] {
        table.insert(key(address, Protocol::TCP), Vec::new());
        let found = judge(&view, &table, &Beside::default());
        assert_eq!(texts(&found), [format!("extra-service TCP {address}")]);
        assert_eq!(found.differences[0].mend, None);
        table.remove(&key(address, Protocol::TCP));
    }
    // A node port is one of every address of the node, but of its protocol alone.
    table.insert(key("127.0.0.1:30080", Protocol::UDP), Vec::new());
    assert_eq!(only(&judge(&view, &table, &Beside::default())).kind, Kind::ExtraService);
    table.remove(&key("127.0.0.1:30080", Protocol::UDP));
    // Marks and excluded ranges are others'.
    table.insert(ServiceKey::Mark { family: crate::ipvs::Family::V4, mark: 1 }, Vec::new());
    table.insert(key("10.99.0.1:80", Protocol::TCP), Vec::new());
    let excluded = vec!["fd00::/8".parse().unwrap(), "10.99.0.0/24".parse().unwrap()];
    assert_eq!(texts(&judge(&view, &table, &Beside { excluded, ..Beside::default() })), [""; 0]);
}

#[test]
fn a_node_port_is_missed_where_others_are_served() {
    let view = web();
    let without = |addresses: &[&str]| {
        let mut table = programmed(&view);
        for address in addresses {
            table.remove(&key(address, Protocol::TCP)).unwrap();
        }
        texts(&judge(&view, &table, &Beside::default()))
    };
    // kube-proxy's nodePortAddresses may leave an address out.
    assert_eq!(without(&["192.168.7.1:30080"]), [""; 0]);
    assert_eq!(without(&["10.0.0.1:30080"]), [""; 0]);
    // No address at all: at least the node's own would have it.
    let none = without(&["10.0.0.1:30080", "192.168.7.1:30080"]);
    assert_eq!(none, ["missing-service TCP 10.0.0.1:30080"]);
    assert_eq!(without(&[WEB]), ["missing-service TCP 10.96.0.1:80"]);
}

/// A fault, and the one difference that it must give.
fn plant(table: &mut Table, what: u8, which: &Index, destination: &Index) -> Option<(Kind, Subject)> {
    let at = *table.keys().nth(which.index(table.len()))?;
    let chosen = table.get(&at).filter(|all| !all.is_empty());
    let chosen =
        chosen.map(|all| Pair { service: at, destination: all[destination.index(all.len())].address });
    Some(match what {
        0 => {
            remove(table, chosen?);
            (Kind::MissingDestination, Subject::Pair(chosen?))
        }
        1 => {
            let stranger =
                if at.family() == crate::ipvs::Family::V4 { "10.9.9.9:9" } else { "[fd00:9::9]:9" };
            set(table, pair(at, stranger), |_| {});
            (Kind::StaleDestination, Subject::Pair(pair(at, stranger)))
        }
        2 => {
            set(table, chosen?, |found| found.weight = 0);
            (Kind::StrayWeight, Subject::Pair(chosen?))
        }
        3 => {
            let ServiceKey::Address { address, .. } = at else { return None };
            // Which addresses have node ports is seen by those that have one.
            let node_port = address.port() >= 30_000;
            let served = table.keys().any(|other| match other {
                ServiceKey::Address { address: other, .. } => {
                    *other != address && other.ip() == address.ip() && other.port() >= 30_000
                }
                ServiceKey::Mark { .. } => false,
            });
            if node_port && !served {
                return None;
            }
            table.remove(&at);
            (Kind::MissingService, Subject::Server(at))
        }
        _ => {
            let extra = key("10.99.0.1:80", Protocol::TCP);
            table.insert(extra, Vec::new());
            (Kind::ExtraService, Subject::Server(extra))
        }
    })
}

proptest! {
    /// What kube-proxy would program differs in nothing, and each planted fault is found, that one alone.
    #[test]
    fn each_fault_is_found_and_nothing_else(view in any_view(), what in 0u8..5, which in any::<Index>(), destination in any::<Index>()) {
        let mut table = programmed(&view);
        prop_assert_eq!(texts(&judge(&view, &table, &Beside::default())), [""; 0]);
        if let Some(planted) = plant(&mut table, what, &which, &destination) {
            let found = judge(&view, &table, &Beside::default());
            let found: Vec<_> = found.differences.iter().map(|d| (d.kind, d.subject.clone())).collect();
            prop_assert_eq!(found, [planted]);
        }
    }

    /// All mends together make the table as kube-proxy would have it, in two steps: deleted destinations of weight 0 kube-proxy adds again where it wants them.
    #[test]
    fn what_is_mended_is_gone(view in any_view(), faults in prop::collection::vec((0u8..3, any::<Index>(), any::<Index>()), 0..8)) {
        let mut table = programmed(&view);
        let wanted = table.clone();
        for (what, which, destination) in faults {
            plant(&mut table, what, &which, &destination);
        }
        for step in 0..2 {
            for difference in judge(&view, &table, &Beside::default()).differences {
                prop_assert!(step == 0 || difference.kind == Kind::MissingDestination, "{:?}", difference);
                match difference.mend {
                    Some(Mend::Ipvs(Change::NewDestination(service, new) | Change::SetDestination(service, new))) => {
                        set(&mut table, Pair { service, destination: new.address }, |there| *there = new.clone());
                    }
                    Some(Mend::Ipvs(Change::DeleteDestination(service, destination))) => {
                        remove(&mut table, Pair { service, destination });
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        for destinations in table.values_mut() {
            destinations.sort_by_key(|destination| destination.address);
        }
        prop_assert_eq!(table, wanted);
    }
}
