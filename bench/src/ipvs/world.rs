//! The node, with the tables that kube-proxy would make, and the cluster file of the same cluster.
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nodefence::ipvs::{
    Change, ChangeOutcome, Destination, Ipvs, Protocol, Service as VirtualServer, ServiceKey, is_loaded,
};
use nodefence_tests::{Agent, Netns, ipvs::switch_on, load::each};
use serde_json::{Value, json};

/// The device that leads to the pods.
pub(super) const UPLINK: &str = "uplink";
/// The agent's own node.
pub(super) const OWN: &str = "node-own";
pub(super) const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 1);
/// How long IPVS may take to free connections in the background.
const PATIENCE: Duration = Duration::from_secs(120);

/// One Service and its destinations: one virtual server.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    /// The node, the pod's number on the node, and the port of each destination.
    pub(super) endpoints: Vec<(u16, u8, u16)>,
}

/// All Services of one protocol.
pub(super) struct Shape {
    pub(super) protocol: Protocol,
    pub(super) services: Vec<Service>,
}

/// The number of pods of a full node.
pub(super) const PODS: usize = 250;

/// The name of a node.
pub(super) fn node(number: u16) -> String {
    format!("node-{number}")
}

/// The address of a node's pod.
pub(super) fn pod(node: u16, at: u8) -> Ipv4Addr {
    let [high, low] = node.to_be_bytes();
    Ipv4Addr::new(10, 128 + high, low, at + 2)
}

/// A Service's address. The first address of the range is the API server's and is left out.
fn cluster_ip(service: usize, port: u16) -> SocketAddr {
    (IpAddr::from([10, 96, (service / 250) as u8, (service % 250) as u8 + 2]), port).into()
}

impl Shape {
    /// Services whose endpoints are all on different nodes. Each pod is behind one Service, and each node has [`PODS`] pods.
    pub(super) fn wide(services: usize, each: usize) -> Self {
        let nodes = (services * each).div_ceil(PODS);
        let endpoint = |number: usize| ((number % nodes) as u16, (number / nodes) as u8, 8_080);
        let services = (0..services).map(|service| Service {
            address: cluster_ip(service, 80),
            endpoints: (0..each).map(|at| endpoint(service * each + at)).collect(),
        });
        Self { protocol: Protocol::TCP, services: services.collect() }
    }

    /// UDP Services with `each` endpoints on node 0 and as many on node 1. They share the [`PODS`] pods of these nodes.
    pub(super) fn two_nodes(services: usize, each: usize) -> Self {
        let endpoint = |node: u16, number: usize| {
            (node, (number % PODS) as u8, 7_000 + u16::try_from(number / PODS).unwrap_or(0))
        };
        let services = (0..services).map(|service| Service {
            address: cluster_ip(service, 53),
            endpoints: (0..2)
                .flat_map(|node| (0..each).map(move |at| endpoint(node, service * each + at)))
                .collect(),
        });
        Self { protocol: Protocol::UDP, services: services.collect() }
    }

    /// The key of a Service's virtual server.
    pub(super) fn key(&self, service: &Service) -> ServiceKey {
        ServiceKey::Address { address: service.address, protocol: self.protocol }
    }

    /// Pairs of a virtual server and a destination on the node `on`.
    pub(super) fn pairs(&self, on: u16) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
        self.services.iter().flat_map(move |service| {
            let of_node = service.endpoints.iter().filter(move |(node, ..)| *node == on);
            of_node.map(|endpoint| (service.address, socket(endpoint)))
        })
    }

    /// The number of destinations.
    pub(super) fn destinations(&self) -> usize {
        self.services.iter().map(|service| service.endpoints.len()).sum()
    }

    fn nodes(&self) -> u16 {
        let nodes = self.services.iter().flat_map(|service| service.endpoints.iter().map(|(node, ..)| *node));
        nodes.max().map_or(0, |last| last + 1)
    }

    /// The cluster file's content.
    pub(super) fn cluster(&self) -> Value {
        let protocol = if self.protocol == Protocol::UDP { "udp" } else { "tcp" };
        let nodes = (0..self.nodes()).map(|number| {
            let [high, low] = number.to_be_bytes();
            json!({ "name": node(number), "address": Ipv4Addr::new(172, 16 + high, low, 1) })
        });
        let services = self.services.iter().enumerate().map(|(at, service)| {
            let target = service.endpoints.first().map_or(0, |endpoint| endpoint.2);
            let endpoints = service.endpoints.iter().map(|(number, at, port)| {
                let mut endpoint = json!({ "address": pod(*number, *at), "node": node(*number) });
                if *port != target {
                    endpoint["ports"] = json!({ "main": port });
                }
                endpoint
            });
            json!({
                "name": format!("default/service-{at}"),
                "clusterIPs": [service.address.ip()],
                "ports": [{ "name": "main", "port": service.address.port(), "targetPort": target, "protocol": protocol }],
                "endpoints": endpoints.collect::<Vec<_>>(),
            })
        });
        json!({
            "nodes": std::iter::once(json!({ "name": OWN, "address": OWN_ADDRESS })).chain(nodes).collect::<Vec<_>>(),
            "services": services.collect::<Vec<_>>(),
        })
    }
}

pub(super) fn socket((node, at, port): &(u16, u8, u16)) -> SocketAddr {
    (pod(*node, *at), *port).into()
}

/// The node. Its uplink leads to a namespace that answers ARP and takes all packets to the pods.
pub(super) struct World {
    pub(super) node: Arc<Netns>,
    _wire: Netns,
}

impl World {
    pub(super) fn new() -> anyhow::Result<Self> {
        let node = Arc::new(Netns::new("node")?);
        let wire = Netns::new("wire")?;
        ensure!(
            node.within(|| Ok(is_loaded()))?,
            "this kernel has no IPVS loaded (modprobe ip_vs ip_vs_rr): `cargo xtask bench ipvs` runs this in a VM"
        );
        node.veth(UPLINK, &wire, "eth0")?;
        node.ip(&format!("addr add {OWN_ADDRESS}/24 dev {UPLINK}"))?;
        wire.ip("addr add 192.168.2.2/24 dev eth0")?;
        node.ip("route add 10.128.0.0/9 via 192.168.2.2")?;
        node.ip("route add local 10.96.0.0/12 dev lo")?;
        switch_on(&node)?;
        // By default entries of conntrack live 30 s if no destination answers. An emulated machine may take longer than that.
        node.sysctl("netfilter/nf_conntrack_udp_timeout", "600")?;
        Ok(Self { node, _wire: wire })
    }

    /// Starts the agent beside the tables. The caller must [`end`](Agent::end) it.
    pub(super) fn agent(&self, program: &Path, shape: &Shape) -> anyhow::Result<Agent> {
        let file = shape.cluster().to_string();
        Agent::of(program, &self.node, OWN, &[UPLINK], &file, &["--proxy", "ipvs"])
    }

    /// Empties IPVS and conntrack, and fills IPVS with the services and destinations.
    pub(super) fn fill(&self, shape: &Shape) -> anyhow::Result<()> {
        self.node.exec("ipvsadm -C")?;
        // A deleted destination keeps its connections for a moment. If it were added again now, it would have them again.
        self.wait_without("connections of all services", |_| true)?;
        self.node.exec("conntrack -F")?;
        let scheduler = "rr".parse()?;
        self.node.within(|| {
            let mut changes = Vec::new();
            for service in &shape.services {
                let key = shape.key(service);
                changes.push(Change::NewService(VirtualServer::new(key, scheduler)));
                changes.extend(
                    service
                        .endpoints
                        .iter()
                        .map(|endpoint| Change::NewDestination(key, Destination::new(socket(endpoint), 1))),
                );
            }
            let applied = Ipvs::open()?.apply(&changes);
            let done = applied.outcomes.iter().filter(|outcome| **outcome == ChangeOutcome::Done).count();
            ensure!(
                done == changes.len(),
                "{done} of {} services and destinations were made: {:?}",
                changes.len(),
                applied.failure
            );
            Ok(())
        })
    }

    /// Sends one datagram from each of `sockets` to each Service. Each datagram makes a connection.
    pub(super) fn send(&self, shape: &Shape, sockets: usize) -> anyhow::Result<()> {
        let to: Vec<SocketAddr> = shape.services.iter().map(|service| service.address).collect();
        each::datagrams(&self.node, OWN_ADDRESS.into(), sockets, &to)
    }

    /// The destination's address of each connection.
    pub(super) fn connections(&self) -> anyhow::Result<Vec<Ipv4Addr>> {
        let text = self.node.within(|| Ok(std::fs::read_to_string("/proc/thread-self/net/ip_vs_conn")?))?;
        // After a heading each line has: protocol, client and its port, service and its port, destination and its port.
        let destination = |line: &str| {
            let raw = u32::from_str_radix(line.split_whitespace().nth(5)?, 16).ok()?;
            Some(Ipv4Addr::from_bits(raw))
        };
        text.lines().skip(1).map(|line| destination(line).with_context(|| line.to_owned())).collect()
    }

    /// Waits until no connection has a destination for which `is` is true.
    pub(super) fn wait_without(&self, what: &str, is: impl Fn(Ipv4Addr) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let left = self.connections()?.into_iter().filter(|address| is(*address)).count();
            if left == 0 {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("{what}: {left} are left after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns a test for the addresses of the node's pods.
pub(super) fn is_on(number: u16) -> impl Fn(Ipv4Addr) -> bool {
    let network = pod(number, 0).octets();
    move |address| address.octets()[..3] == network[..3]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_wide_shape_has_each_pod_once() {
        let shape = Shape::wide(1_000, 10);
        let all: BTreeSet<SocketAddr> =
            shape.services.iter().flat_map(|service| service.endpoints.iter().map(socket)).collect();
        assert_eq!((all.len(), shape.destinations(), shape.nodes()), (10_000, 10_000, 40));
        assert_eq!(shape.pairs(7).count(), PODS);
        for service in &shape.services {
            let nodes: BTreeSet<u16> = service.endpoints.iter().map(|(node, ..)| *node).collect();
            assert_eq!(nodes.len(), 10);
        }
    }

    #[test]
    fn two_nodes_share_their_pods() {
        let shape = Shape::two_nodes(1_000, 4);
        let (pairs, pods): (Vec<_>, BTreeSet<_>) =
            (shape.pairs(0).collect(), shape.pairs(0).map(|(_, to)| to.ip()).collect());
        assert_eq!((pairs.len(), pods.len()), (4_000, PODS));
        assert_eq!(pairs.iter().collect::<BTreeSet<_>>().len(), 4_000);
        assert!(
            shape.pairs(0).all(|(_, to)| matches!(to.ip(), IpAddr::V4(to) if is_on(0)(to) && !is_on(1)(to)))
        );
    }

    #[test]
    fn the_agent_can_read_the_cluster_file() {
        for shape in [Shape::wide(100, 10), Shape::two_nodes(100, 4)] {
            let view =
                nodefence::cluster::parse(&shape.cluster().to_string(), false).expect("a cluster file");
            assert_eq!(view.services.as_ref().map(|services| services.len()), Some(100));
            assert_eq!(view.endpoints(), Some(shape.destinations()));
        }
    }
}
