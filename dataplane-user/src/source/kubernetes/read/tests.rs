use serde_json::{Value, json};

use super::*;

fn slice(change: impl FnOnce(&mut Value)) -> Result<Option<SliceObject>, Conflict> {
    let mut object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1", "namespace": "default", "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "none", "port": null}],
        "endpoints": [{
            "addresses": ["10.1.0.1", "10.1.0.2"], "nodeName": "node-a", "zone": "z1",
            "conditions": {"ready": false, "serving": true, "terminating": true},
            "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "node-a"}]},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-7c5d", "uid": "5f"},
        }],
    });
    change(&mut object);
    let slice: wire::Slice = serde_json::from_value(object).expect("a slice");
    slice.read(&mut Texts::default())
}

fn service(change: impl FnOnce(&mut Value)) -> Result<Option<ServiceObject>, Conflict> {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00::a"],
            "externalIPs": ["192.0.2.7"], "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 30}},
            "ports": [
                {"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP", "nodePort": 30080},
                {"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"},
            ],
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "192.0.2.8", "ipMode": "VIP"}, {"ip": "192.0.2.9", "ipMode": "Proxy"}, {"hostname": "x.example"},
        ]}},
    });
    change(&mut object);
    let service: wire::Service = serde_json::from_value(object).expect("a Service");
    service.read(&mut Texts::default())
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn a_slice_has_its_endpoints_with_their_own_ports() {
    let read = slice(|_| {}).expect("it can be read").expect("it means something");
    assert_eq!((&*read.name, &*read.service), ("default/web-1", "default/web"));
    let hints = Hints { zones: ["z1".into()].into(), nodes: ["node-a".into()].into() };
    assert_eq!(
        read.endpoints,
        [EndpointObject {
            zone: Some("z1".into()),
            ports: Some(Arc::new([("http".to_owned(), 8080)].into())),
            ready: false,
            serving: true,
            terminating: true,
            hints: Some(Box::new(hints)),
            ..EndpointObject::ready(ip("10.1.0.1"), Some("node-a".into()))
        }]
    );
}

/// The address may be that of a machine, with its kubelet and ssh.
#[test]
fn of_an_endpoint_that_is_no_pod_only_the_ports_are_cut() {
    let host_network = |node: Value, target: Value| {
        let read = slice(|slice| {
            slice["endpoints"][0]["nodeName"] = node;
            slice["endpoints"][0]["targetRef"] = target;
        });
        read.expect("it can be read").expect("it means something").endpoints[0].host_network
    };
    let vm = json!({"kind": "VirtualMachine", "name": "vm-1"});
    for target in [Value::Null, json!({}), json!({"kind": null}), json!({"kind": ""}), vm] {
        assert!(host_network(json!("node-a"), target.clone()), "{target}");
        // Without a node the owner of the address decides.
        assert!(!host_network(Value::Null, target.clone()) && !host_network(json!(""), target));
    }
    assert!(!host_network(json!("node-a"), json!({"kind": "Pod"})));
}

/// The API server sends no field at all, or null, for what is not set.
#[test]
fn conditions_that_are_not_set_are_those_of_a_ready_endpoint() {
    for conditions in [json!({}), json!({"ready": null, "serving": null, "terminating": null})] {
        let read = slice(|slice| {
            slice["endpoints"][0]["conditions"] = conditions;
            slice["endpoints"][0]["hints"] = Value::Null;
            slice["endpoints"][0]["nodeName"] = Value::Null;
        });
        let read = read.expect("it can be read").expect("it means something");
        let endpoint = &read.endpoints[0];
        assert_eq!((endpoint.ready, endpoint.serving, endpoint.terminating), (true, true, false));
        assert_eq!((&endpoint.hints, &endpoint.node), (&None, &None));
    }
    // `serving` does not follow `ready`.
    let read = slice(|slice| slice["endpoints"][0]["conditions"] = json!({"ready": false}));
    let read = read.expect("it can be read").expect("it means something");
    assert_eq!((read.endpoints[0].ready, read.endpoints[0].serving), (false, true));
}

#[test]
fn what_kube_proxy_ignores_means_nothing() {
    assert_eq!(slice(|slice| slice["addressType"] = json!("FQDN")), Ok(None));
    assert_eq!(slice(|slice| slice["metadata"]["labels"] = json!({})), Ok(None));
    assert_eq!(slice(|slice| slice["metadata"]["labels"] = Value::Null), Ok(None));
    assert_eq!(service(|service| service["spec"]["type"] = json!("ExternalName")), Ok(None));
    let empty = slice(|slice| {
        slice["endpoints"] = Value::Null;
        slice["ports"] = Value::Null;
    });
    assert_eq!(empty.expect("it can be read").expect("it means something").endpoints, []);
}

#[test]
fn an_object_that_cannot_be_read_is_named() {
    let error =
        slice(|slice| slice["endpoints"][0]["addresses"] = json!(["10.1.0"])).expect_err("no address");
    assert_eq!(
        error.to_string(),
        "slice `default/web-1`, endpoints[0].addresses[0]: `10.1.0` is no IP address"
    );
    let error = slice(|slice| slice["endpoints"][0]["addresses"] = Value::Null).expect_err("no address");
    assert_eq!(error.to_string(), "slice `default/web-1`, endpoints[0].addresses[0]: missing");
    let error = slice(|slice| slice["ports"][0]["port"] = json!(70_000)).expect_err("no port");
    assert_eq!(error.field, "ports[0].port");
    let error = service(|service| service["spec"]["ports"][0]["protocol"] = json!("QUIC")).expect_err("none");
    assert_eq!(error.to_string().split(':').next(), Some("Service `default/web`, spec.ports[0].protocol"));
    let error = service(|service| service["spec"]["clusterIPs"][1] = json!("x")).expect_err("no address");
    assert_eq!(error.field, "spec.clusterIPs[1]");
}

/// Of such objects kube-proxy reads the rest, too.
#[test]
fn what_old_objects_have_is_read_as_kube_proxy_reads_it() {
    let read = slice(|slice| {
        slice["endpoints"][0]["addresses"] = json!(["010.001.000.09"]);
        slice["ports"][1] = json!({"name": "zero", "port": 0});
    });
    let read = read.expect("it can be read").expect("it means something");
    assert_eq!(read.endpoints[0].address, ip("10.1.0.9"));
    assert_eq!(read.endpoints[0].ports.as_ref().map(|ports| ports.len()), Some(1));
    for wrong in ["10.1.0", "10.1.0.256", "10.1.0.1.1", "10.1..1", ""] {
        assert_eq!(with_leading_zeros(wrong), None, "{wrong}");
    }
}

#[test]
fn a_service_has_its_addresses_policies_and_ports() {
    let read = service(|_| {}).expect("it can be read").expect("it means something");
    let http = ServicePort {
        name: "http".to_owned(),
        protocol: Protocol::Tcp,
        port: 80,
        target: 0,
        node_port: Some(30080),
    };
    let dns = ServicePort {
        name: "dns".to_owned(),
        protocol: Protocol::Udp,
        port: 53,
        target: 5353,
        node_port: None,
    };
    let expected = ServiceObject {
        external_ips: vec![ip("192.0.2.7")],
        load_balancer_ips: vec![ip("192.0.2.8")],
        affinity: Some(Duration::from_secs(30)),
        external: TrafficPolicy::Local,
        mode: ServiceMode::Cut,
        ..ServiceObject::new("default/web", vec![ip("10.96.0.10"), ip("fd00::a")], vec![http, dns])
    };
    assert_eq!(read, expected);
    let read = service(|service| service["spec"]["sessionAffinityConfig"] = Value::Null);
    let read = read.expect("it can be read").expect("it means something");
    assert_eq!(read.affinity, Some(Duration::from_secs(10_800)));
}

/// kube-proxy gives such a Service no virtual address.
#[test]
fn a_service_that_kube_proxy_leaves_alone_is_read_as_headless() {
    let other = service(|service| {
        service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    });
    let headless = service(|service| {
        service["spec"]["clusterIP"] = json!("None");
        service["spec"]["clusterIPs"] = json!(["None"]);
    });
    for read in [other, headless] {
        let read = read.expect("it can be read").expect("it means something");
        assert_eq!(
            (read.cluster_ips.len(), read.external_ips.len(), read.load_balancer_ips.len()),
            (0, 0, 0)
        );
        assert_eq!(read.ports.iter().filter_map(|port| port.node_port).count(), 0);
        assert_eq!(read.ports.len(), 2);
    }
}

#[test]
fn a_label_leaves_a_service_out() {
    for (label, mode) in [
        ("off", ServiceMode::Off),
        ("observe", ServiceMode::Observe),
        ("enforce", ServiceMode::Unknown("enforce".into())),
    ] {
        let read = service(|service| service["metadata"]["labels"] = json!({"nodefence.io/mode": label}));
        assert_eq!(read.expect("it can be read").expect("it means something").mode, mode);
    }
}

#[test]
fn a_member_is_a_node() {
    let read = |spec: Value| {
        let metadata = json!({"name": "node-a"});
        let member: wire::Member =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a member");
        member.read(&mut Texts::default())
    };
    let error = read(json!({"addresses": "10.0.0.1"})).expect_err("no list");
    assert_eq!((error.object.to_string().as_str(), error.field.as_str()), ("node `node-a`", "spec"));
    let spec = json!({"uid": "5f", "addresses": ["10.0.0.1", "fd00::1"], "zone": "z1"});
    let read = read(spec).expect("it can be read").expect("it means something");
    let node = NodeObject::new("node-a", vec![ip("10.0.0.1"), ip("fd00::1")]);
    assert_eq!(read, NodeObject { uid: Some("5f".into()), zone: Some("z1".into()), ..node });
}

#[test]
fn a_text_that_occurs_often_is_kept_once() {
    let mut texts = Texts::default();
    let first = texts.shared("node-a");
    assert!(Arc::ptr_eq(&first, &texts.shared("node-a")));
}
