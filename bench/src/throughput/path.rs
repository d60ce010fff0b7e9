//! The path that is measured: a router between a client and a sink.
use nodefence_tests::Netns;

use crate::tables;

/// The router's device towards the sink: the programs are attached to it, as on a node.
pub(super) const UPLINK: &str = "uplink";

/// The three namespaces.
pub(super) struct Path3 {
    pub(super) client: Netns,
    pub(super) router: Netns,
    pub(super) sink: Netns,
}

impl Path3 {
    pub(super) fn new() -> anyhow::Result<Self> {
        let path =
            Self { client: Netns::new("client")?, router: Netns::new("router")?, sink: Netns::new("sink")? };
        path.client.veth("eth0", &path.router, "downlink")?;
        path.router.veth(UPLINK, &path.sink, "eth0")?;
        path.client.ip("addr add 192.168.1.2/24 dev eth0")?;
        path.router.ip("addr add 192.168.1.1/24 dev downlink")?;
        path.router.ip(&format!("addr add 192.168.2.1/24 dev {UPLINK}"))?;
        path.sink.ip("addr add 192.168.2.2/24 dev eth0")?;
        path.client.ip("route add default via 192.168.1.1")?;
        path.sink.ip("route add default via 192.168.2.1")?;
        path.router.sysctl("ipv4/ip_forward", "1")?;
        // With our programs the traffic goes to a backend. With a peer it goes to an address outside of the peer's set.
        for address in [tables::backend(0), tables::stranger(0)] {
            path.sink.ip(&format!("addr add {address}/32 dev lo"))?;
            path.router.ip(&format!("route add {address}/32 via 192.168.2.2"))?;
        }
        // Fixed neighbour entries: no address is resolved while packets are counted.
        for (from, device, address, to, peer) in [
            (&path.client, "eth0", "192.168.1.1", &path.router, "downlink"),
            (&path.router, "downlink", "192.168.1.2", &path.client, "eth0"),
            (&path.router, UPLINK, "192.168.2.2", &path.sink, "eth0"),
            (&path.sink, "eth0", "192.168.2.1", &path.router, UPLINK),
        ] {
            let mac = to.mac(peer)?;
            from.ip(&format!("neigh replace {address} lladdr {mac} dev {device} nud permanent"))?;
        }
        Ok(path)
    }

    /// Switches segmentation and receive offloads of every device on the path.
    pub(super) fn offload(&self, on: bool) -> anyhow::Result<()> {
        let state = if on { "on" } else { "off" };
        for (netns, device) in
            [(&self.client, "eth0"), (&self.router, "downlink"), (&self.router, UPLINK), (&self.sink, "eth0")]
        {
            netns.exec(&format!("ethtool -K {device} tso {state} gso {state}"))?;
        }
        Ok(())
    }
}
