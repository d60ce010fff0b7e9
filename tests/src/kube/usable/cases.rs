//! The table of cases, and random cases.

use std::{collections::BTreeMap, net::IpAddr};

use crate::kube::objects::{Endpoint, Port, Service, Slice};
use nodefence::cluster::Family;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

/// A node. The test runs a kube-proxy for each node.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) address: &'static str,
    pub(crate) zone: Option<&'static str>,
}

/// Two nodes in different zones, and one in no zone.
pub(crate) const NODES: [Node; 3] = [
    Node { name: "node-a", address: "10.2.0.11", zone: Some("zone-1") },
    Node { name: "node-b", address: "10.2.0.12", zone: Some("zone-2") },
    Node { name: "node-c", address: "10.2.0.13", zone: None },
];

const NO_FAMILY: &[Family] = &[];
const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];

/// The properties of a Service, without its endpoints.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The IP versions of the ClusterIPs.
    families: &'static [Family],
    internal_local: bool,
    external_local: bool,
    affinity: bool,
    /// Whether there is a UDP port beside the TCP port.
    two_ports: bool,
    node_ports: bool,
    /// The IP versions of the external IPs.
    external: &'static [Family],
    /// The IP versions of the load balancer's addresses.
    balancer: &'static [Family],
}

/// A ClusterIP of IPv4, one port, policies Cluster, and no address for clients outside.
const PLAIN: Shape = Shape {
    families: V4,
    internal_local: false,
    external_local: false,
    affinity: false,
    two_ports: false,
    node_ports: false,
    external: NO_FAMILY,
    balancer: NO_FAMILY,
};

/// The shapes. Each set of endpoints becomes a Service of each shape.
const SHAPES: [Shape; 9] = [
    Shape { node_ports: true, two_ports: true, ..PLAIN },
    Shape { node_ports: true, external_local: true, families: BOTH, ..PLAIN },
    Shape { node_ports: true, internal_local: true, families: V6, ..PLAIN },
    Shape { node_ports: true, internal_local: true, external_local: true, ..PLAIN },
    Shape { affinity: true, families: V6, two_ports: true, ..PLAIN },
    Shape { affinity: true, internal_local: true, families: BOTH, ..PLAIN },
    Shape { affinity: true, external: V4, external_local: true, ..PLAIN },
    Shape { balancer: BOTH, families: BOTH, two_ports: true, ..PLAIN },
    Shape { balancer: V4, external_local: true, node_ports: true, ..PLAIN },
];

/// The ports of endpoints that have other ports than the Service says: the name of each port, and its number.
type Own = &'static [(&'static str, u16)];

/// A Service with its endpoints.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The position in the list of cases, from which addresses and ports follow.
    number: u16,
    shape: Shape,
    /// The endpoints, each with its own ports if these are not the Service's.
    endpoints: Vec<(Endpoint, Option<Own>)>,
}

impl Case {
    /// The Service as an object of the API.
    pub(crate) fn service(&self) -> Service {
        let Self { number, shape, .. } = self;
        let node_port = |first: u16| shape.node_ports.then_some(first + number);
        let mut ports = vec![Port {
            name: "main",
            protocol: "TCP",
            port: 80,
            target: 8080,
            node_port: node_port(30_000),
        }];
        if shape.two_ports {
            let node_port = node_port(31_000);
            ports.push(Port { name: "more", protocol: "UDP", port: 53, target: 5353, node_port });
        }
        let addresses = |families: &[Family], v4: [u8; 2], v6: u16| -> Vec<IpAddr> {
            let [high, low] = number.to_be_bytes();
            let address = |family: &Family| match family {
                Family::V4 => [v4[0], v4[1], 10 + high, low].into(),
                Family::V6 => [0xfd00, v6, 0, 0, 0, 0, 0, 0x1000 + number].into(),
            };
            families.iter().map(address).collect()
        };
        let service = Service {
            name: self.name.clone(),
            cluster_ips: addresses(shape.families, [10, 96], 0x96),
            external_ips: addresses(shape.external, [198, 18], 0x198),
            balancer_ips: addresses(shape.balancer, [198, 19], 0x199),
            health_port: None,
            ports,
            internal_local: shape.internal_local,
            external_local: shape.external_local,
            affinity: shape.affinity,
        };
        let external_local = shape.external_local && service.external();
        let health_port = (external_local && !shape.balancer.is_empty()).then_some(32_000 + number);
        Service { external_local, health_port, ..service }
    }

    /// The Service's slices. All endpoints of a slice have the same IP version and the same ports.
    pub(crate) fn slices(&self) -> impl Iterator<Item = Slice> {
        let service = self.service();
        let mut groups: BTreeMap<_, Vec<Endpoint>> = BTreeMap::new();
        for (endpoint, own) in &self.endpoints {
            groups.entry((endpoint.address.is_ipv6(), *own)).or_default().push(endpoint.clone());
        }
        if groups.is_empty() {
            // The controller leaves an empty slice of IPv4.
            groups.insert((false, None), Vec::new());
        }
        groups.into_iter().zip(0..).map(move |(((_, own), endpoints), at): (_, u8)| {
            let mut slice = Slice::new(&service, endpoints);
            slice.name = format!("{}-{at}", service.name);
            if let Some(own) = own {
                slice.ports.retain_mut(|port| {
                    let target = own.iter().find(|(name, _)| *name == port.name).map(|(_, target)| *target);
                    port.target = target.unwrap_or_default();
                    target.is_some()
                });
            }
            slice
        })
    }

    /// The Service as an entry of the cluster file. A field that the API does not get is left out here too.
    pub(crate) fn file(&self) -> Value {
        let service = self.service();
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        let ports = service.ports.iter().map(|port| {
            let mut json = json!({
                "name": port.name, "port": port.port, "targetPort": port.target,
                "protocol": port.protocol.to_lowercase(),
            });
            if let Some(node_port) = port.node_port {
                json["nodePort"] = json!(node_port);
            }
            json
        });
        let endpoints = self.endpoints.iter().map(|(endpoint, own)| {
            let mut json = self::endpoint(endpoint);
            for (name, target) in own.iter().copied().flatten() {
                json["ports"][name] = json!(target);
            }
            json
        });
        json!({
            "name": format!("default/{}", self.name),
            "clusterIPs": service.cluster_ips,
            "externalIPs": service.external_ips,
            "loadBalancerIPs": service.balancer_ips,
            "internalTrafficPolicy": policy(service.internal_local),
            "externalTrafficPolicy": policy(service.external_local),
            "sessionAffinity": if service.affinity { "ClientIP" } else { "None" },
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
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

/// An endpoint of a set without an address: its node, its conditions, the zones and nodes in its hints, and its own ports.
#[derive(Clone, Copy)]
struct Plan {
    node: Option<&'static str>,
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
    zones: &'static [&'static str],
    nodes: &'static [&'static str],
    own: Option<Own>,
}

impl Plan {
    const fn zones(self, zones: &'static [&'static str]) -> Self {
        Self { zones, ..self }
    }

    const fn nodes(self, nodes: &'static [&'static str]) -> Self {
        Self { nodes, ..self }
    }

    const fn own(self, own: Own) -> Self {
        Self { own: Some(own), ..self }
    }

    fn place(self, number: u16, at: u8, family: Family) -> Endpoint {
        let [high, low] = number.to_be_bytes();
        let address: IpAddr = match family {
            Family::V4 => [10, 100 + high, low, at + 1].into(),
            Family::V6 => [0xfd00, 0x100, 0, 0, 0, 0, number, u16::from(at) + 1].into(),
        };
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Endpoint {
            address,
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
    Plan { node: Some(node), ready, serving, terminating, zones: &[], nodes: &[], own: None }
}

const YES: Option<bool> = Some(true);
const NO: Option<bool> = Some(false);
const A: &str = "node-a";
const B: &str = "node-b";
const C: &str = "node-c";

const fn ready(node: &'static str) -> Plan {
    on(node, YES, YES, NO)
}

/// A terminating pod that still answers.
const fn ending(node: &'static str) -> Plan {
    on(node, NO, YES, YES)
}

/// A pod that is neither ready nor terminating.
const fn failing(node: &'static str) -> Plan {
    on(node, NO, NO, NO)
}

/// A terminating pod that does not answer any more.
const fn ended(node: &'static str) -> Plan {
    on(node, NO, NO, YES)
}

const NOWHERE: Plan = Plan { node: None, ..ready(A) };

const ONE: &[&str] = &["zone-1"];
const TWO: &[&str] = &["zone-2"];
const THREE: &[&str] = &["zone-3"];

/// Ports that differ from the Service's: one for its first port alone, one for its second alone, and one for each.
const FIRST: Own = &[("main", 7000)];
const SECOND: Own = &[("more", 7053)];
const BOTH_PORTS: Own = &[("main", 7000), ("more", 7053)];

/// The sets of endpoints, with their names.
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
    // With publishNotReadyAddresses the controller says ready whatever the pod's state is.
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
    ("own-ports", &[ready(A), ready(A).own(BOTH_PORTS), ready(B).own(FIRST), ready(C).own(SECOND)]),
    ("own-ports-none-for-the-second", &[ready(A).own(FIRST), ready(B).own(FIRST)]),
    ("own-ports-ready-for-the-first", &[ready(A).own(FIRST), ending(A), ready(B).own(FIRST)]),
    (
        "own-ports-hint-missing-for-the-first",
        &[ready(A).zones(ONE), ready(B).zones(TWO), ready(B).own(FIRST)],
    ),
];

/// Returns the cases of the table and `random` random ones, with the seed of the random ones. With `half`, each set of endpoints has only every second shape.
pub(crate) fn all(random: usize, half: bool) -> (Vec<Case>, u64) {
    let mut cases = Vec::new();
    for (set, (name, plans)) in SETS.iter().enumerate() {
        for (at, shape) in SHAPES.into_iter().enumerate() {
            if !half || (set + at) % 2 == 0 {
                add(&mut cases, name, plans, shape, shape.families);
            }
        }
    }
    let seed =
        std::env::var("NODEFENCE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..random {
        let plans: Vec<Plan> = (0..rng.random_range(0..=6)).map(|_| any(&mut rng)).collect();
        let families = pick(&mut rng, &[V4, V6, BOTH]);
        let outside = [NO_FAMILY, NO_FAMILY, V4, V6, BOTH];
        let shape = Shape {
            families,
            internal_local: rng.random(),
            external_local: rng.random(),
            affinity: rng.random_bool(0.3),
            two_ports: rng.random(),
            node_ports: rng.random_bool(0.3),
            external: pick(&mut rng, &outside),
            balancer: pick(&mut rng, &outside),
        };
        // Some cases have endpoints of an IP version that the Service lacks, or no endpoints of one that it has.
        let there = pick(&mut rng, &[families, families, families, V4, V6, BOTH]);
        add(&mut cases, "random", &plans, shape, there);
    }
    (cases, seed)
}

fn any(rng: &mut StdRng) -> Plan {
    let mut said = |yes: f64| if rng.random_bool(0.15) { None } else { Some(rng.random_bool(yes)) };
    let ready = said(0.5);
    let serving = said(0.6);
    let terminating = said(0.5);
    let node = pick(rng, &[Some(A), Some(B), Some(C), None]);
    let zones: &[&[&str]] = &[ONE, TWO, THREE, &["zone-1", "zone-2"], &[]];
    let nodes: &[&[&str]] = &[&[A], &[B], &[C], &[A, B], &[]];
    let own = pick(rng, &[None, None, None, None, Some(FIRST), Some(BOTH_PORTS)]);
    Plan { node, ready, serving, terminating, zones: pick(rng, zones), nodes: pick(rng, nodes), own }
}

fn pick<T: Copy>(rng: &mut StdRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn add(cases: &mut Vec<Case>, name: &str, plans: &[Plan], shape: Shape, families: &[Family]) {
    let number = u16::try_from(cases.len()).expect("few cases");
    // The second IP version lacks the first endpoint, so that code which judges both versions together gets another result than code which judges each.
    let endpoints = families.iter().enumerate().flat_map(|(skipped, family)| {
        let placed = plans.iter().zip(0..).map(|(plan, at)| (plan.place(number, at, *family), plan.own));
        placed.skip(skipped)
    });
    cases.push(Case {
        name: format!("{name}-{number}"),
        number,
        // An endpoint's ports must be among the Service's, so a case with own ports has two ports.
        shape: Shape { two_ports: shape.two_ports || plans.iter().any(|plan| plan.own.is_some()), ..shape },
        endpoints: endpoints.collect(),
    });
}
