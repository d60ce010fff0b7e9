//! The namespaces of one run: client, router and two nodes.
use std::{sync::Arc, time::Duration};

use nodefence_tests::Netns;

use crate::tables;

/// The amount of work.
pub(crate) struct Sizes {
    /// Established flows.
    pub(crate) flows: u32,
    /// Backends over which the flows are spread.
    pub(crate) backends: u32,
    /// How often a sending client sends.
    pub(crate) every: Duration,
    /// An error that has not come after this time counts as "never".
    pub(crate) cap: Duration,
    /// Runs of each way.
    pub(crate) rounds: u32,
}

/// Source ports that the clients use of one address.
pub(super) const PER_ADDRESS: u32 = 25_000;

pub(super) const SERVICE: &str = "10.96.0.10";
pub(super) const SERVICE_PORT: u16 = 80;
pub(crate) const SERVER_PORT: u16 = 8080;
/// The device of the router towards node B.
pub(super) const UPLINK: &str = "uplink";
/// A backend on node C, which stays healthy.
pub(super) const SPARE: &str = "10.1.0.1";

/// The namespaces of one run.
pub(super) struct Cluster {
    pub(super) client: Netns,
    pub(super) router: Arc<Netns>,
    pub(super) node_b: Netns,
    _node_c: Netns,
}

impl Cluster {
    pub(super) fn new(sizes: &Sizes) -> anyhow::Result<Self> {
        let cluster = Self {
            client: Netns::new("client")?,
            router: Arc::new(Netns::new("router")?),
            node_b: Netns::new("node-b")?,
            _node_c: Netns::new("node-c")?,
        };
        let Self { client, router, node_b, _node_c: node_c } = &cluster;
        client.veth("eth0", router, "downlink")?;
        router.veth(UPLINK, node_b, "eth0")?;
        router.veth("uplink-c", node_c, "eth0")?;
        client.ip("addr add 192.168.1.2/24 dev eth0")?;
        for i in 0..sizes.flows.div_ceil(PER_ADDRESS) {
            client.ip(&format!("addr add 192.168.1.{}/24 dev eth0", 10 + i))?;
        }
        client.ip("route add default via 192.168.1.1")?;
        router.ip("addr add 192.168.1.1/24 dev downlink")?;
        router.ip(&format!("addr add 192.168.2.1/24 dev {UPLINK}"))?;
        router.ip(&format!("addr add {SERVICE}/32 dev lo"))?;
        router.ip("addr add 192.168.3.1/24 dev uplink-c")?;
        for (node, net, pods) in [(node_b, "192.168.2", "10.0.0.0/16"), (node_c, "192.168.3", "10.1.0.0/16")]
        {
            router.ip(&format!("route add {pods} via {net}.2"))?;
            node.ip(&format!("addr add {net}.2/24 dev eth0"))?;
            node.ip(&format!("route add default via {net}.1"))?;
            node.ip(&format!("route add local {pods} dev lo"))?;
            node.sysctl("core/somaxconn", "65535")?;
            node.sysctl("ipv4/tcp_max_syn_backlog", "65535")?;
            node.sysctl("ipv4/tcp_syncookies", "0")?;
        }
        router.sysctl("ipv4/ip_forward", "1")?;
        let backends: Vec<String> =
            (0..sizes.backends).map(|index| format!("{index} : {}", tables::backend(index))).collect();
        router.nft(
            &format!(
                "table ip kube {{\n chain services {{\n  type nat hook prerouting priority dstnat;\n  \
                 ip daddr {SERVICE} tcp dport {SERVICE_PORT} dnat to numgen random mod {} map {{ {} }} : {SERVER_PORT}\n \
                 }}\n}}\n",
                sizes.backends,
                backends.join(", ")
            ),
        )?;
        Ok(cluster)
    }
}
