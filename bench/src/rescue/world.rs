//! The namespaces and the rules of one run.
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    sync::Arc,
};

use nodefence_tests::{Agent, Netns};
use serde_json::{Value, json};

use crate::flows;

/// Endpoints on each of the two nodes.
const PER_NODE: u8 = 10;
/// The Service's node port, on the router.
const NODE_PORT: u16 = 30_080;
/// The node port of another Service, which has endpoints on node C alone (in nftables mode).
const OTHER_NODE_PORT: u16 = 30_081;
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
/// The clients' addresses. There are so many that a port of an address is used again only after ten seconds or more.
pub(super) const CLIENTS: [Ipv4Addr; 4] = [client(10), client(11), client(12), client(13)];

/// The mode of kube-proxy whose rules are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Nftables,
    Iptables,
}

impl Mode {
    pub(super) const ALL: [Self; 2] = [Self::Nftables, Self::Iptables];

    /// The name that `nodefence agent --proxy` takes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// The namespaces: client - router (node A) - nodes B and C. The kernels of B and C have the pods' addresses.
pub(super) struct World {
    pub(super) client: Netns,
    pub(super) router: Arc<Netns>,
    pub(super) nodes: [Netns; 2],
}

impl World {
    pub(super) fn new(mode: Mode) -> anyhow::Result<Self> {
        let world = Self {
            client: Netns::new("client")?,
            router: Arc::new(Netns::new("router")?),
            nodes: [Netns::new("node-b")?, Netns::new("node-c")?],
        };
        let Self { client, router, nodes } = &world;
        client.veth("eth0", router, "downlink")?;
        for address in CLIENTS {
            client.ip(&format!("addr add {address}/24 dev eth0"))?;
        }
        client.ip(&format!("route add default via {ROUTER}"))?;
        router.ip(&format!("addr add {ROUTER}/24 dev downlink"))?;
        router.sysctl("ipv4/ip_forward", "1")?;
        for (at, node) in (0..).zip(nodes) {
            let uplink = uplink(at);
            let net = 2 + at;
            let pods = pods(at);
            router.veth(&uplink, node, "eth0")?;
            router.ip(&format!("addr add 192.168.{net}.1/24 dev {uplink}"))?;
            router.ip(&format!("route add {pods} via 192.168.{net}.2"))?;
            node.ip(&format!("addr add 192.168.{net}.2/24 dev eth0"))?;
            node.ip(&format!("route add default via 192.168.{net}.1"))?;
            node.ip(&format!("route add local {pods} dev lo"))?;
            node.sysctl("core/somaxconn", "65535")?;
            node.sysctl("ipv4/tcp_max_syn_backlog", "65535")?;
        }
        match mode {
            Mode::Nftables => router.nft(&nftables())?,
            Mode::Iptables => drop(router.feed("iptables-restore --wait", &iptables())?),
        }
        Ok(world)
    }

    /// Starts the agent on the router. `proxy` is the value of the option `--proxy`.
    pub(super) fn agent(&self, program: &Path, proxy: &str) -> anyhow::Result<Agent> {
        let uplinks = Self::uplinks();
        let uplinks = uplinks.each_ref().map(String::as_str);
        let cluster = Self::cluster().to_string();
        Agent::of(program, &self.router, "node-a", &uplinks, &cluster, &["--proxy", proxy])
    }

    /// The devices that lead to the nodes.
    fn uplinks() -> [String; 2] {
        [0, 1].map(uplink)
    }

    /// The cluster file's content: the nodes, and the Service with all endpoints.
    fn cluster() -> Value {
        let nodes = (0..).zip(["node-b", "node-c"]);
        let on = |at: u8, name: &'static str| {
            (0..PER_NODE).map(move |number| json!({ "address": pod(at, number), "node": name }))
        };
        let service = |name: &str, ip: &str, node_port: u16, endpoints: Vec<Value>| {
            json!({
                "name": name,
                "clusterIPs": [ip],
                "ports": [{ "port": 80, "targetPort": flows::SERVER_PORT, "nodePort": node_port, "protocol": "tcp" }],
                "endpoints": endpoints,
            })
        };
        json!({
            "nodes": std::iter::once(json!({ "name": "node-a", "address": "192.168.2.1" }))
                .chain(nodes.map(|(at, name)| json!({ "name": name, "address": format!("192.168.{}.2", 2 + at) })))
                .collect::<Vec<_>>(),
            "services": [
                service("default/web", "10.96.0.10", NODE_PORT, on(0, "node-b").chain(on(1, "node-c")).collect()),
                service("default/other", "10.96.0.11", OTHER_NODE_PORT, on(1, "node-c").collect()),
            ],
        })
    }
}

const fn client(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 1, host)
}

/// The address that clients connect to.
pub(super) fn service() -> SocketAddrV4 {
    SocketAddrV4::new(ROUTER, NODE_PORT)
}

/// The address that clients of the other Service connect to.
pub(super) fn other_service() -> SocketAddrV4 {
    SocketAddrV4::new(ROUTER, OTHER_NODE_PORT)
}

fn uplink(at: u8) -> String {
    format!("uplink{at}")
}

fn pods(at: u8) -> String {
    format!("10.{at}.0.0/16")
}

fn pod(at: u8, number: u8) -> String {
    format!("10.{at}.0.{}", 1 + number)
}

fn all_pods() -> Vec<String> {
    [0, 1].into_iter().flat_map(|at| (0..PER_NODE).map(move |number| pod(at, number))).collect()
}

/// The rules of kube-proxy's nftables mode for a node port. They choose a random endpoint, and masquerade the client.
fn nftables() -> String {
    let pods = all_pods();
    let endpoints = pods.iter().enumerate();
    let vmap: Vec<String> = endpoints.clone().map(|(at, _)| format!("{at} : goto endpoint-{at}")).collect();
    let first = usize::from(PER_NODE);
    let others = (first..pods.len()).map(|at| format!("{} : goto endpoint-{at}", at - first));
    let others: Vec<String> = others.collect();
    let chains: String = endpoints
        .map(|(at, pod)| {
            format!(" chain endpoint-{at} {{\n  meta l4proto tcp dnat to {pod}:{}\n }}\n", flows::SERVER_PORT)
        })
        .collect();
    format!(
        "table ip kube-proxy {{\n{chains} chain service {{\n  meta mark set mark or 0x4000\n  numgen random mod {} vmap {{ {} }}\n }}\n \
         chain other {{\n  meta mark set mark or 0x4000\n  numgen random mod {} vmap {{ {} }}\n }}\n \
         map service-nodeports {{\n  type inet_proto . inet_service : verdict\n  elements = {{ tcp . {NODE_PORT} : goto service, tcp . {OTHER_NODE_PORT} : goto other }}\n }}\n \
         chain nat-prerouting {{\n  type nat hook prerouting priority dstnat\n  fib daddr type local ip protocol . th dport vmap @service-nodeports\n }}\n \
         chain nat-postrouting {{\n  type nat hook postrouting priority srcnat\n  mark and 0x4000 != 0 masquerade fully-random\n }}\n}}\n",
        vmap.len(),
        vmap.join(", "),
        others.len(),
        others.join(", ")
    )
}

/// The rules of kube-proxy's iptables mode. Each endpoint's rule takes its share of the connections that the rules before it left.
fn iptables() -> String {
    let pods = all_pods();
    let chains: String = (0..pods.len()).map(|at| format!(":KUBE-SEP-{at} - [0:0]\n")).collect();
    let picks: String = (0..pods.len())
        .map(|at| {
            let left = pods.len() - at;
            let share = 1.0 / left as f64;
            let chance = if left == 1 {
                String::new()
            } else {
                format!("-m statistic --mode random --probability {share:.10} ")
            };
            format!("-A KUBE-SVC {chance}-j KUBE-SEP-{at}\n")
        })
        .collect();
    let ends: String = pods
        .iter()
        .enumerate()
        .map(|(at, pod)| {
            format!("-A KUBE-SEP-{at} -p tcp -j DNAT --to-destination {pod}:{}\n", flows::SERVER_PORT)
        })
        .collect();
    format!(
        "*nat\n:KUBE-SVC - [0:0]\n{chains}-A PREROUTING -p tcp --dport {NODE_PORT} -m addrtype --dst-type LOCAL -j MARK --or-mark 0x4000\n\
         -A PREROUTING -p tcp --dport {NODE_PORT} -m addrtype --dst-type LOCAL -j KUBE-SVC\n{picks}{ends}\
         -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully\nCOMMIT\n"
    )
}
