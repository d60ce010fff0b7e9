//! The table of cases, and random ones beside it.

use std::net::Ipv4Addr;

use crate::kube::objects::{Endpoint, Port, Service};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

/// Port of every Service here.
pub(crate) const PORT: u16 = 80;
/// Port of every endpoint.
pub(crate) const TARGET: u16 = 8080;

/// A node: a kube-proxy runs for each of them.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) address: &'static str,
    pub(crate) zone: Option<&'static str>,
}

/// Two nodes of different zones, and one of none.
pub(crate) const NODES: [Node; 3] = [
    Node { name: "node-a", address: "10.2.0.11", zone: Some("zone-1") },
    Node { name: "node-b", address: "10.2.0.12", zone: Some("zone-2") },
    Node { name: "node-c", address: "10.2.0.13", zone: None },
];

/// How a Service is reached from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    Not,
    NodePort,
    ExternalIp,
}

/// A Service with its endpoints.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Its place in the list: addresses and ports follow from it.
    number: u16,
    pub(crate) internal_local: bool,
    pub(crate) external_local: bool,
    outside: Outside,
    affinity: bool,
    pub(crate) endpoints: Vec<Endpoint>,
}

impl Case {
    /// As the API has it.
    pub(crate) fn service(&self) -> Service {
        let [high, low] = self.number.to_be_bytes();
        let node_port = (self.outside == Outside::NodePort).then_some(30_000 + self.number);
        let port = Port { name: "main", protocol: "TCP", port: PORT, target: TARGET, node_port };
        let external_ip = Ipv4Addr::new(198, 18, high, low);
        Service {
            internal_local: self.internal_local,
            external_local: self.external_local && self.outside != Outside::Not,
            affinity: self.affinity,
            external_ips: (self.outside == Outside::ExternalIp)
                .then_some(external_ip.into())
                .into_iter()
                .collect(),
            ..Service::new(&self.name, Ipv4Addr::new(10, 96, 10 + high, low), vec![port])
        }
    }

    /// As the cluster file has it: what is not said to the API is not said here either.
    pub(crate) fn file(&self) -> Value {
        let service = self.service();
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        let mut port = json!({"port": PORT, "targetPort": TARGET, "protocol": "tcp"});
        if let Some(node_port) = service.ports[0].node_port {
            port["nodePort"] = json!(node_port);
        }
        json!({
            "name": format!("default/{}", self.name),
            "clusterIPs": [service.cluster_ip],
            "externalIPs": service.external_ips,
            "internalTrafficPolicy": policy(service.internal_local),
            "externalTrafficPolicy": policy(service.external_local),
            "sessionAffinity": if self.affinity { "ClientIP" } else { "None" },
            "ports": [port],
            "endpoints": self.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let mut json = json!({"address": endpoint.address});
    let said =
        [("ready", endpoint.ready), ("serving", endpoint.serving), ("terminating", endpoint.terminating)];
    for (name, value) in said {
        if let Some(value) = value {
            json[name] = json!(value);
        }
    }
    for (name, value) in [("node", &endpoint.node), ("zone", &endpoint.zone)] {
        if let Some(value) = value {
            json[name] = json!(value);
        }
    }
    if !endpoint.for_zones.is_empty() || !endpoint.for_nodes.is_empty() {
        json["hints"] = json!({"zones": endpoint.for_zones, "nodes": endpoint.for_nodes});
    }
    json
}

/// An endpoint of a set, before it gets an address: node, conditions, zones and nodes it is meant for.
#[derive(Clone, Copy)]
struct Plan {
    node: Option<&'static str>,
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
    zones: &'static [&'static str],
    nodes: &'static [&'static str],
}

impl Plan {
    const fn zones(self, zones: &'static [&'static str]) -> Self {
        Self { zones, ..self }
    }

    const fn nodes(self, nodes: &'static [&'static str]) -> Self {
        Self { nodes, ..self }
    }

    fn place(self, number: u16, at: u8) -> Endpoint {
        let [high, low] = number.to_be_bytes();
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Endpoint {
            address: Ipv4Addr::new(10, 100 + high, low, at + 1).into(),
            node: self.node.map(str::to_owned),
            zone: NODES
                .iter()
                .find(|node| Some(node.name) == self.node)
                .and_then(|node| node.zone)
                .map(str::to_owned),
            ready: self.ready,
            serving: self.serving,
            terminating: self.terminating,
            for_zones: owned(self.zones),
            for_nodes: owned(self.nodes),
        }
    }
}

const fn on(
    node: &'static str,
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
) -> Plan {
    Plan { node: Some(node), ready, serving, terminating, zones: &[], nodes: &[] }
}

const YES: Option<bool> = Some(true);
const NO: Option<bool> = Some(false);
const A: &str = "node-a";
const B: &str = "node-b";
const C: &str = "node-c";

const fn ready(node: &'static str) -> Plan {
    on(node, YES, YES, NO)
}

/// A pod that is about to end and still answers.
const fn ending(node: &'static str) -> Plan {
    on(node, NO, YES, YES)
}

/// A pod that neither is ready nor ends.
const fn failing(node: &'static str) -> Plan {
    on(node, NO, NO, NO)
}

/// A pod that is about to end and answers no more.
const fn ended(node: &'static str) -> Plan {
    on(node, NO, NO, YES)
}

const NOWHERE: Plan = Plan { node: None, ..ready(A) };

const ONE: &[&str] = &["zone-1"];
const TWO: &[&str] = &["zone-2"];
const THREE: &[&str] = &["zone-3"];

/// Sets of endpoints; each becomes one Service for each pair of policies.
const SETS: &[(&str, &[Plan])] = &[
    ("empty", &[]),
    ("ready-everywhere", &[ready(A), ready(B), ready(C)]),
    ("ready-here-and-there", &[ready(A), failing(B), ready(C)]),
    ("nothing-said", &[on(A, None, None, None), on(B, None, None, None)]),
    ("ready-not-said", &[on(A, None, NO, None), failing(B)]),
    ("serving-not-said-ending", &[on(A, NO, None, YES), failing(B)]),
    ("serving-not-said-unready", &[on(A, NO, None, None), failing(B)]),
    ("terminating-not-said", &[on(A, NO, YES, None), failing(B)]),
    ("all-ending", &[ending(A), ending(B)]),
    ("all-ended", &[ended(A), ended(B)]),
    ("one-ending-one-ended", &[ending(A), ended(B)]),
    ("ending-here-ready-there", &[ending(A), ready(B)]),
    ("failing-here-ready-there", &[failing(A), ready(B)]),
    ("ending-and-ready-here", &[ending(A), ready(A), ready(B)]),
    // publishNotReadyAddresses: the controller says ready whatever the pod is.
    ("published-though-ended", &[on(A, YES, NO, YES), on(B, YES, NO, NO)]),
    ("on-no-node", &[NOWHERE, ready(B)]),
    ("zone-hints", &[ready(A).zones(ONE), ready(B).zones(TWO), ready(C).zones(TWO)]),
    ("zone-hints-shared", &[ready(A).zones(&["zone-1", "zone-2"]), ready(B).zones(TWO)]),
    ("zone-hint-missing", &[ready(A).zones(ONE), ready(B)]),
    ("zone-hint-missing-where-unready", &[ready(A).zones(ONE), ready(B).zones(TWO), failing(C)]),
    ("zone-hints-for-others", &[ready(A).zones(THREE), ready(B).zones(THREE)]),
    ("zone-hint-of-an-unready-one", &[failing(A).zones(ONE), ready(B).zones(TWO)]),
    ("zone-hints-and-none-ready", &[ending(A).zones(ONE), ending(B).zones(TWO)]),
    ("node-hints", &[ready(A).nodes(&[A]), ready(B).nodes(&[B]), ready(B).nodes(&[C])]),
    ("node-hints-for-one", &[ready(A).nodes(&[A]), ready(B).nodes(&[A])]),
    ("node-hint-missing", &[ready(A).nodes(&[A]), ready(B)]),
    ("node-and-zone-hints", &[ready(A).nodes(&[A]).zones(ONE), ready(C).nodes(&[A]).zones(TWO)]),
    ("zone-hints-and-a-node-hint", &[ready(A).nodes(&[B]).zones(ONE), ready(B).zones(TWO)]),
    ("node-hint-of-an-ending-one", &[ending(A).nodes(&[A]), ready(B).nodes(&[B])]),
];

/// The table and `random` more; with the seed of these.
pub(crate) fn all(random: usize) -> (Vec<Case>, u64) {
    let mut cases = Vec::new();
    for (name, plans) in SETS {
        for internal_local in [false, true] {
            for external_local in [false, true] {
                add(&mut cases, name, plans, [internal_local, external_local], Outside::NodePort, false);
            }
            add(&mut cases, name, plans, [internal_local, false], Outside::Not, true);
        }
        add(&mut cases, name, plans, [false, true], Outside::ExternalIp, true);
    }
    let seed =
        std::env::var("NODEFENCE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..random {
        let plans: Vec<Plan> = (0..rng.random_range(0..=6)).map(|_| any(&mut rng)).collect();
        let outside = pick(&mut rng, &[Outside::Not, Outside::NodePort, Outside::ExternalIp]);
        add(&mut cases, "random", &plans, [rng.random(), rng.random()], outside, rng.random_bool(0.3));
    }
    (cases, seed)
}

fn any(rng: &mut StdRng) -> Plan {
    let mut said = |yes: f64| if rng.random_bool(0.15) { None } else { Some(rng.random_bool(yes)) };
    let (ready, serving, terminating) = (said(0.5), said(0.6), said(0.5));
    let node = pick(rng, &[Some(A), Some(B), Some(C), None]);
    let zones: &[&[&str]] = &[ONE, TWO, THREE, &["zone-1", "zone-2"], &[]];
    let nodes: &[&[&str]] = &[&[A], &[B], &[C], &[A, B], &[]];
    Plan { node, ready, serving, terminating, zones: pick(rng, zones), nodes: pick(rng, nodes) }
}

fn pick<T: Copy>(rng: &mut StdRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn add(
    cases: &mut Vec<Case>,
    name: &str,
    plans: &[Plan],
    local: [bool; 2],
    outside: Outside,
    affinity: bool,
) {
    let number = u16::try_from(cases.len()).expect("few cases");
    let endpoints = plans.iter().zip(0..).map(|(plan, at)| plan.place(number, at)).collect();
    let [internal_local, external_local] = local;
    cases.push(Case {
        name: format!("{name}-{number}"),
        number,
        internal_local,
        external_local,
        outside,
        affinity,
        endpoints,
    });
}
