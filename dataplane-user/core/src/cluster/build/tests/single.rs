//! The rules for single objects, one by one.

use std::net::IpAddr;

use crate::cluster::{
    build::{Builder, Change, Rules},
    object::{Conflict, EndpointObject, NodeObject, ObjectName, ServiceObject, SliceObject},
    protocol::Protocol,
    service::{ServiceMode, ServicePort},
    view::{Backend, Scope},
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(name: &str, addresses: &[&str]) -> NodeObject {
    let addresses = addresses.iter().map(|text| ip(text)).collect();
    NodeObject::new(name, addresses)
}

fn named((name, address): (&str, &str)) -> Change {
    Change::Node(node(name, &[address]))
}

fn service(name: &str, cluster_ip: &str) -> ServiceObject {
    let port =
        ServicePort { name: String::new(), protocol: Protocol::Tcp, port: 80, target: 8080, node_port: None };
    ServiceObject::new(name, vec![ip(cluster_ip)], vec![port])
}

fn slice(name: &str, service: &str, endpoints: &[(&str, Option<&str>)]) -> SliceObject {
    let endpoint =
        |(address, node): &(&str, Option<&str>)| EndpointObject::ready(ip(address), node.map(Into::into));
    let endpoints = endpoints.iter().map(endpoint).collect();
    SliceObject { name: name.into(), service: service.into(), endpoints }
}

/// A builder of these changes, what they brought, and the view.
struct Told {
    builder: Builder,
    brought: Vec<String>,
}

impl Told {
    fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut told = Self { builder: Builder::new(Rules::Tolerant), brought: Vec::new() };
        for change in changes {
            told.tell(change);
        }
        told
    }

    fn tell(&mut self, change: Change) {
        self.brought = self.builder.apply(change).iter().map(ToString::to_string).collect();
    }

    fn backends(&mut self, node: &str) -> Vec<String> {
        let view = self.builder.view();
        let backends = view.node(node).map(|node| node.backends.clone()).unwrap_or_default();
        backends.iter().map(ToString::to_string).collect()
    }

    fn left_out(&mut self, node: &str) -> Vec<IpAddr> {
        let view = self.builder.view();
        view.node(node).map(|node| node.left_out.clone()).unwrap_or_default()
    }

    /// The node of each endpoint of the first Service.
    fn tied(&mut self) -> Vec<Option<String>> {
        let view = self.builder.view();
        let endpoints = &view.services.as_ref().unwrap()[0].endpoints;
        let name = |endpoint: &crate::cluster::Endpoint| Some(view.at(endpoint.node?)?.name.to_string());
        endpoints.iter().map(name).collect()
    }
}

#[test]
fn an_address_that_two_nodes_claim_is_cut_for_neither() {
    let shared = Backend { address: ip("10.0.0.9"), scope: Scope::Port(22, Protocol::Tcp) };
    let a = NodeObject { backends: vec![shared], ..node("a", &["10.0.0.1", "10.0.0.9"]) };
    let b = node("b", &["10.0.0.2", "fd00::2", "10.0.0.9"]);
    let mut told = Told::new([Change::Node(a), Change::Node(node("b", &["10.0.0.2"]))]);
    assert_eq!(told.backends("a"), ["10.0.0.9:22/tcp"]);
    told.tell(Change::Node(b));
    let why = "10.0.0.9 is claimed for `a` and for `b`, and counts for neither";
    assert_eq!(
        told.brought,
        [
            format!("node `a`, addresses[1]: {why}"),
            format!("node `a`, backends[0].address: {why}"),
            format!("node `b`, addresses[2]: {why}"),
        ]
    );
    let view = told.builder.view();
    let addresses = |name| view.node(name).unwrap().addresses.clone();
    assert_eq!((addresses("a"), addresses("b")), (vec![ip("10.0.0.1")], vec![ip("10.0.0.2"), ip("fd00::2")]));
    assert!(told.backends("a").is_empty());
    told.tell(Change::Gone(ObjectName::Node("b".into())));
    assert_eq!((told.brought.len(), told.backends("a")), (0, vec!["10.0.0.9:22/tcp".to_owned()]));
    assert_eq!(told.builder.conflicts().count(), 0);
}

#[test]
fn endpoints_of_two_nodes_are_tied_to_none() {
    let mut told = Told::new([("a", "10.0.0.1"), ("b", "10.0.0.2")].map(named));
    told.tell(Change::Service(service("x/a", "10.96.0.1")));
    told.tell(Change::Slice(slice("s1", "x/a", &[("10.1.0.1", Some("a")), ("10.1.0.2", Some("a"))])));
    assert_eq!(told.backends("a"), ["10.1.0.1", "10.1.0.2"]);
    told.tell(Change::Service(service("x/b", "10.96.0.2")));
    told.tell(Change::Slice(slice("s2", "x/b", &[("10.1.0.2", Some("b"))])));
    assert_eq!(told.brought.len(), 2, "{:?}", told.brought);
    assert!(told.brought[0].starts_with("slice `s1`, endpoints[1].address: 10.1.0.2 is claimed for `a`"));
    assert_eq!((told.backends("a"), told.backends("b")), (vec!["10.1.0.1".to_owned()], Vec::new()));
    assert_eq!(told.tied(), [Some("a".to_owned()), None]);
}

#[test]
fn of_an_address_of_the_machine_only_ports_can_be_cut() {
    let mut told = Told::new([("a", "10.0.0.1"), ("b", "10.0.0.2")].map(named));
    told.tell(Change::Service(service("x/a", "10.96.0.1")));
    told.tell(Change::Slice(slice("s1", "x/a", &[("10.1.0.1", Some("a")), ("10.1.0.2", Some("b"))])));
    assert_eq!(told.backends("a"), ["10.1.0.1"]);
    let brought = told.builder.set_machine(&"a".into(), ["10.1.0.1", "10.1.0.2"].map(ip).into());
    assert_eq!(told.backends("a"), ["10.1.0.1:8080/tcp"]);
    // An address that another node claims is neither's.
    assert!(told.backends("b").is_empty());
    let why = "10.1.0.2 is claimed for `a` and for `b`, and counts for neither";
    let expected = format!("slice `s1`, endpoints[1].address: {why}");
    assert_eq!(brought.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    assert!(told.builder.set_machine(&"a".into(), [ip("10.1.0.1")].into()).is_empty());
    assert_eq!((told.backends("b"), told.builder.conflicts().count()), (vec!["10.1.0.2".to_owned()], 0));
}

#[test]
fn an_endpoint_on_any_of_its_node_s_addresses_is_host_network() {
    let mut told = Told::new([
        Change::Node(node("a", &["10.0.0.1", "fd00::1"])),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice("s", "x/a", &[("fd00::1", Some("a")), ("fd00:1::1", Some("a"))])),
    ]);
    assert_eq!(told.backends("a"), ["[fd00::1]:8080/tcp", "fd00:1::1"]);
    // Whoever comes first.
    let mut told = Told::new([
        Change::Slice(slice("s", "x/a", &[("fd00::1", Some("a"))])),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Node(node("a", &["10.0.0.1"])),
        Change::Node(node("a", &["10.0.0.1", "fd00::1"])),
    ]);
    assert_eq!((told.backends("a"), told.left_out("a")), (vec!["[fd00::1]:8080/tcp".to_owned()], Vec::new()));
}

#[test]
fn of_an_endpoint_that_may_be_no_pod_only_ports_are_cut() {
    let mut by_hand = slice("s", "x/a", &[("192.0.2.7", Some("a")), ("10.1.0.1", Some("a"))]);
    by_hand.endpoints[0].host_network = true;
    let told =
        [named(("a", "10.0.0.1")), Change::Service(service("x/a", "10.96.0.1")), Change::Slice(by_hand)];
    assert_eq!(Told::new(told).backends("a"), ["10.1.0.1", "192.0.2.7:8080/tcp"]);
}

/// It may be the node's own address, with kubelet, ssh and tunnels.
#[test]
fn what_is_of_a_family_in_which_its_node_has_no_address_is_left_out() {
    let listed = |address: &str, scope| Backend { address: ip(address), scope };
    let backends =
        vec![listed("fd00:1::9", Scope::Address), listed("fd00::1", Scope::Port(22, Protocol::Tcp))];
    let endpoints = [("10.1.0.1", Some("a")), ("fd00:1::1", Some("a"))];
    let mut told = Told::new([
        Change::Node(NodeObject { backends: backends.clone(), ..node("a", &["10.0.0.1"]) }),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice("s", "x/a", &endpoints)),
    ]);
    assert_eq!(told.backends("a"), ["10.1.0.1", "[fd00::1]:22/tcp"]);
    assert_eq!(told.left_out("a"), ["fd00:1::1", "fd00:1::9"].map(ip));
    // It is an endpoint of the node all the same: on a flagged node no endpoint counts as alive.
    assert_eq!((told.tied(), told.brought.len()), (vec![Some("a".to_owned()); 2], 0));
    told.tell(Change::Node(NodeObject { backends, ..node("a", &["10.0.0.1", "fd00::1"]) }));
    assert_eq!(told.backends("a"), ["10.1.0.1", "[fd00::1]:22/tcp", "fd00:1::1", "fd00:1::9"]);
    assert_eq!(told.left_out("a"), [] as [IpAddr; 0]);
    told.tell(Change::Node(node("a", &[])));
    assert_eq!(
        (told.backends("a"), told.left_out("a")),
        (Vec::new(), ["10.1.0.1", "fd00:1::1"].map(ip).into())
    );
}

#[test]
fn what_comes_before_what_it_is_part_of_waits_for_it() {
    let mut told = Told::new([Change::Slice(slice("s", "x/a", &[("10.1.0.1", Some("a"))]))]);
    assert!(told.brought.is_empty());
    told.tell(Change::Service(service("x/a", "10.96.0.1")));
    assert_eq!(told.brought, ["slice `s`, endpoints[0].node: `a` is not among the nodes"]);
    assert!(told.builder.conflicts().all(|conflict| conflict.is_usual), "such nodes are no members");
    assert_eq!(told.tied(), [None]);
    // Before all nodes are there the place of one is another.
    told.tell(Change::Node(node("b", &["10.0.0.2"])));
    told.tell(Change::Node(node("a", &["10.0.0.1"])));
    assert_eq!((told.tied(), told.builder.conflicts().count()), (vec![Some("a".to_owned())], 0));
    told.tell(Change::Nodes(vec![node("0", &[]), node("a", &["10.1.0.1"])]));
    assert_eq!(
        (told.tied(), told.backends("a")),
        (vec![Some("a".to_owned())], vec!["10.1.0.1:8080/tcp".to_owned()])
    );
}

#[test]
fn what_a_service_that_is_wrong_runs_at_is_cut_for_nobody() {
    let listed = Backend { address: ip("10.1.0.1"), scope: Scope::Address };
    let mut told = Told::new([
        Change::Node(NodeObject { backends: vec![listed], ..node("a", &["10.0.0.1"]) }),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice("s", "x/a", &[("10.1.0.1", Some("a"))])),
    ]);
    assert_eq!(told.backends("a"), ["10.1.0.1"]);
    told.tell(Change::Service(ServiceObject { ports: Vec::new(), ..service("x/a", "10.96.0.1") }));
    assert_eq!(told.brought, ["Service `x/a`, ports: empty; a Service with a cluster IP has a port"]);
    assert!(told.backends("a").is_empty());
    told.tell(Change::Gone(ObjectName::Service("x/a".into())));
    assert_eq!(told.backends("a"), ["10.1.0.1"]);
}

#[test]
fn a_service_with_a_mode_that_is_none_stays_and_is_named() {
    let with = |mode| Change::Service(ServiceObject { mode, ..service("x/a", "10.96.0.1") });
    let mut told = Told::new([with(ServiceMode::named("observe"))]);
    assert!(told.brought.is_empty(), "{:?}", told.brought);
    told.tell(with(ServiceMode::named("of")));
    assert_eq!(
        told.brought,
        ["Service `x/a`, mode: `of` is no mode: expected observe or off; its endpoints are not cut"]
    );
    let modes = [ServiceMode::named("of"), ServiceMode::Off, ServiceMode::Observe];
    assert!(modes.iter().all(ServiceMode::is_left_out) && !ServiceMode::Cut.is_left_out());
    let view = told.builder.view();
    assert_eq!(view.services.expect("Services")[0].mode, modes[0]);
}

#[test]
fn an_endpoint_without_a_node_belongs_to_the_node_that_has_its_address() {
    let mut told = Told::new([
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice("s", "x/a", &[("10.0.0.1", None), ("192.0.2.9", None)])),
    ]);
    assert_eq!(told.tied(), [None, None]);
    // The node comes, and its port alone is a backend: the node's own sockets have the address.
    told.tell(named(("a", "10.0.0.1")));
    assert_eq!(told.tied(), [Some("a".to_owned()), None]);
    assert_eq!(told.backends("a"), ["10.0.0.1:8080/tcp"]);
    // The address moves to another node.
    told.tell(Change::Nodes(vec![node("b", &["10.0.0.1"])]));
    assert_eq!(told.tied(), [Some("b".to_owned()), None]);
    assert_eq!(told.backends("b"), ["10.0.0.1:8080/tcp"]);
    // Two nodes claim it, so it is neither's.
    told.tell(named(("a", "10.0.0.1")));
    assert_eq!(told.tied(), [None, None]);
    told.tell(Change::Gone(ObjectName::Node("a".into())));
    assert_eq!(told.tied(), [Some("b".to_owned()), None]);
    // A node that is wrong by itself has no backends, and gets them once it is right.
    told.tell(Change::Node(node("b", &["10.0.0.1", "127.0.0.1"])));
    assert_eq!(told.tied(), [None, None]);
    told.tell(named(("b", "10.0.0.1")));
    assert_eq!(told.tied(), [Some("b".to_owned()), None]);
    told.tell(Change::Gone(ObjectName::Slice("s".into())));
    assert!(told.backends("b").is_empty());
    told.tell(Change::Gone(ObjectName::Node("b".into())));
    told.tell(Change::Gone(ObjectName::Service("x/a".into())));
    assert_eq!(told.builder.kept(), [0; 3]);
}

/// The address of a pod is that of an endpoint that names the pod's node: an endpoint without a node says nothing of it.
#[test]
fn an_endpoint_without_a_node_claims_no_address() {
    let mut told = Told::new([
        named(("a", "10.0.0.1")),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice("s", "x/a", &[("10.1.0.1", Some("a"))])),
        Change::Service(service("x/b", "10.96.0.2")),
        Change::Slice(slice("t", "x/b", &[("10.1.0.1", None)])),
    ]);
    assert_eq!(told.backends("a"), ["10.1.0.1"]);
    assert!(told.brought.is_empty());
    let view = told.builder.view();
    assert_eq!(view.services.expect("Services")[1].endpoints[0].node, None);
}

#[test]
fn a_headless_service_needs_no_port() {
    let headless = ServiceObject { ports: Vec::new(), ..ServiceObject::new("x/a", Vec::new(), Vec::new()) };
    let endpoint =
        |ports| EndpointObject { ports, ..EndpointObject::ready(ip("10.1.0.1"), Some("a".into())) };
    let mut told = Told::new([named(("a", "10.0.0.1")), Change::Service(headless)]);
    for ports in [None, Some(Default::default())] {
        let endpoints = vec![endpoint(ports)];
        told.tell(Change::Slice(SliceObject { endpoints, ..slice("s", "x/a", &[]) }));
        // Nothing could be exempt there, so nothing is cut.
        assert_eq!((told.brought.clone(), told.backends("a")), (Vec::new(), Vec::new()));
    }
}

#[test]
fn what_a_service_that_cannot_be_read_runs_at_is_cut_for_nobody() {
    let left_out = || {
        let object = ObjectName::Service("x/a".into());
        let message = "`x` is no IP address".to_owned();
        let field = "spec.externalIPs[0]".to_owned();
        Change::LeftOut(Conflict { object, field, message, is_usual: false })
    };
    let mut told = Told::new([
        named(("a", "10.0.0.1")),
        Change::Service(service("x/b", "10.96.0.2")),
        Change::Slice(slice("t", "x/b", &[("10.1.0.1", Some("a"))])),
        Change::Slice(slice("s", "x/a", &[("10.1.0.1", Some("a"))])),
    ]);
    for (change, backends) in [
        (left_out(), &[][..]),
        (Change::Service(service("x/a", "10.96.0.1")), &["10.1.0.1"]),
        (left_out(), &[]),
        (Change::Gone(ObjectName::Service("x/a".into())), &["10.1.0.1"]),
        (left_out(), &[]),
        (Change::Services(vec![service("x/b", "10.96.0.2")]), &["10.1.0.1"]),
    ] {
        told.tell(change.clone());
        assert_eq!(told.backends("a"), backends, "{change:?}");
    }
}

/// kube-proxy goes by the name that an endpoint has, whatever is cut.
#[test]
fn an_endpoint_is_local_to_the_node_that_it_names() {
    let mut told = Told::new([
        Change::Nodes(vec![node("a", &["10.0.0.1"]), node("b", &["10.0.0.2"])]),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice(
            "s",
            "x/a",
            &[("10.0.0.1", None), ("10.1.0.1", Some("a")), ("10.1.0.2", Some("b")), ("10.1.0.3", Some("c"))],
        )),
    ]);
    let local = |told: &mut Told, name: &str| -> Vec<String> {
        let view = told.builder.view();
        let index = view.index(name);
        let endpoints = &view.services.as_ref().expect("Services")[0].endpoints;
        let local = endpoints.iter().filter(|endpoint| endpoint.is_local_to(index, name));
        local.map(|endpoint| endpoint.address.to_string()).collect()
    };
    for (name, addresses) in [("a", "10.1.0.1"), ("b", "10.1.0.2"), ("c", "10.1.0.3")] {
        assert_eq!(local(&mut told, name), [addresses], "{name}");
    }
    // Another Service withholds the address: it is cut for no node.
    let headless = ServiceObject::new("x/z", Vec::new(), Vec::new());
    told.tell(Change::Service(headless));
    told.tell(Change::Slice(slice("t", "x/z", &[("10.1.0.1", Some("a"))])));
    assert!(told.backends("a").iter().all(|backend| !backend.starts_with("10.1.")));
    assert_eq!(local(&mut told, "a"), ["10.1.0.1"]);
}

/// A machine has the virtual addresses of Services, where kube-proxy forwards by IPVS.
#[test]
fn an_endpoint_at_a_virtual_address_belongs_to_no_node() {
    let mut told = Told::new([
        named(("a", "10.0.0.1")),
        Change::Service(service("x/a", "10.96.0.1")),
        Change::Slice(slice("s", "x/a", &[("10.96.0.7", None), ("10.0.0.1", None)])),
    ]);
    told.builder.set_machine(&"a".into(), [ip("10.96.0.7"), ip("10.0.0.1")].into());
    assert_eq!(told.tied(), [Some("a".to_owned()), None]);
    // The object names it no more, and the machine still has it.
    told.tell(named(("a", "10.0.0.2")));
    assert_eq!(told.tied(), [None, None]);
}

#[test]
fn a_virtual_address_of_two_services_leads_to_the_first_by_name() {
    let mut told = Told::new([
        Change::Service(service("x/b", "10.96.0.1")),
        Change::Service(service("x/a", "10.96.0.1")),
    ]);
    let why = "10.96.0.1 of port 80/tcp is a virtual address of Service `x/a` already";
    assert_eq!(told.brought, [format!("Service `x/b`, clusterIPs[0]: {why}")]);
    let services = told.builder.view().services.unwrap();
    // kube-proxy may serve either Service: both are there, and their exemptions hold.
    assert_eq!(services.iter().map(|service| service.cluster_ips.len()).collect::<Vec<_>>(), [1, 1]);
    told.tell(Change::Services(vec![service("x/b", "10.96.0.1")]));
    assert_eq!(told.builder.conflicts().count(), 0);
}

#[test]
fn of_two_slices_with_one_endpoint_the_first_by_name_counts() {
    let node_a = named(("a", "10.0.0.1"));
    let service_a = Change::Service(service("x/a", "10.96.0.1"));
    let second = SliceObject {
        endpoints: slice("s2", "x/a", &[("10.1.0.1", Some("a"))])
            .endpoints
            .into_iter()
            .map(|endpoint| EndpointObject { ready: false, ..endpoint })
            .collect(),
        ..slice("s2", "x/a", &[])
    };
    let first = slice("s1", "x/a", &[("10.1.0.1", Some("a"))]);
    let mut told = Told::new([node_a, service_a, Change::Slice(second), Change::Slice(first)]);
    assert_eq!(
        told.brought,
        ["slice `s2`, endpoints[0].address: 10.1.0.1:8080 stands there already for port ``"]
    );
    assert!(told.builder.conflicts().all(|conflict| conflict.is_usual), "it moves between slices");
    assert!(told.builder.view().services.unwrap()[0].endpoints[0].ready);
    told.tell(Change::Gone(ObjectName::Slice("s1".into())));
    assert!(!told.builder.view().services.unwrap()[0].endpoints[0].ready);
}

#[test]
fn there_may_be_so_many_nodes() {
    let max = nodefence_common::MAX_NODES as usize;
    let name = |n: usize| format!("n{n:05}");
    let ip = |n: usize| format!("10.0.{}.{}", n / 250, n % 250);
    let nodes = (1..=max).map(|n| node(&name(n), &[&ip(n)])).collect();
    let mut told = Told::new([Change::Nodes(nodes)]);
    assert!(told.brought.is_empty());
    told.tell(Change::Service(service("x/a", "10.96.0.1")));
    told.tell(Change::Slice(slice("s", "x/a", &[("10.1.0.1", Some(&name(max)))])));
    told.tell(Change::Node(node(&name(0), &[])));
    let last = name(max);
    assert_eq!(
        told.brought,
        [
            format!("node `{last}`, name: more than {max} nodes"),
            format!("slice `s`, endpoints[0].node: `{last}` is not among the nodes"),
        ]
    );
    assert_eq!(told.builder.view().nodes.len(), max);
    told.tell(Change::Gone(ObjectName::Node(name(7).as_str().into())));
    assert_eq!((told.builder.conflicts().count(), told.backends(&last)), (0, vec!["10.1.0.1".to_owned()]));
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let mut builder = Builder::new(Rules::Strict);
    let good = vec![node("a", &["10.0.0.1"]), node("b", &["10.0.0.2"])];
    assert!(builder.apply(Change::Nodes(good)).is_empty());
    let before = builder.view();
    let bad = vec![node("a", &["10.0.0.3", "127.0.0.1"]), node("c", &["10.0.0.3"])];
    let brought = builder.apply(Change::Nodes(bad));
    assert_eq!(brought.len(), 1);
    assert_eq!(
        (&brought[0].object, brought[0].field.as_str()),
        (&ObjectName::Node("a".into()), "addresses[1]")
    );
    assert_eq!((builder.view(), builder.conflicts().count()), (before, 0));
}
