//! The namespace of the cluster: a bridge with a port for each guest. It has no way out.

use std::{net::Ipv4Addr, ops::RangeInclusive, sync::Arc};

use anyhow::Result;

use crate::Netns;

/// The numbers of the nodes.
pub const NODES: RangeInclusive<u8> = 1..=3;

/// The address of the control plane, on the bridge.
pub const HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);

/// The address of a node.
pub const fn address(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 77, 10 + node)
}

/// The name of a node.
pub fn name(node: u8) -> String {
    format!("node-{node}")
}

/// The number of the node of this name.
pub fn number(name: &str) -> Option<u8> {
    NODES.into_iter().find(|node| self::name(*node) == name)
}

/// The range of a node's pods.
pub fn pods(node: u8) -> String {
    format!("10.244.{node}.0/24")
}

/// The ranges of all pods.
pub const PODS: &str = "10.244.0.0/16";

/// The device on the bridge that leads to a node.
pub(super) fn tap(node: u8) -> String {
    format!("tap{node}")
}

/// The Ethernet address of a guest's card.
pub(super) fn mac(node: u8) -> String {
    format!("52:54:00:77:00:{node:02x}")
}

/// Makes the namespace.
pub(super) fn namespace() -> Result<Arc<Netns>> {
    let ns = Netns::new("cluster")?;
    let mut script = format!("link add br0 type bridge\naddress add {HOST}/24 dev br0\nlink set br0 up\n");
    for node in NODES {
        let tap = tap(node);
        script += &format!(
            "tuntap add dev {tap} mode tap\nlink set {tap} master br0 up\nroute add {} via {}\n",
            pods(node),
            address(node)
        );
    }
    ns.ip(&script)?;
    Ok(Arc::new(ns))
}
