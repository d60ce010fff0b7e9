//! Devices, addresses and routes of the cluster.

use anyhow::{Context as _, Result};

use super::{Cluster, Node, Overlay};
use crate::{Netns, tun::TunPair};

pub(super) fn build(cluster: &Cluster) -> Result<Option<TunPair>> {
    let nodes = [&cluster.a, &cluster.b, &cluster.c];
    for ns in [&cluster.client, &cluster.fabric] {
        settings(ns)?;
    }
    cluster.fabric.ip("link add br0 type bridge\nlink set br0 up")?;
    for node in nodes {
        settings(&node.ns)?;
        settings(&node.pod)?;
        uplink(cluster, node).with_context(|| format!("uplink of {}", node.name))?;
        pod(node).with_context(|| format!("pod of {}", node.name))?;
    }
    outside(cluster)?;
    let tun = match cluster.options.overlay {
        Overlay::Tun => Some(TunPair::new(&cluster.a.ns, &cluster.b.ns, "tun0")?),
        _ => None,
    };
    for node in nodes {
        overlay(cluster, node).with_context(|| format!("overlay of {}", node.name))?;
        for other in nodes {
            if other.index != node.index {
                routes(cluster, node, other).with_context(|| format!("{} to {}", node.name, other.name))?;
            }
        }
    }
    if !cluster.options.offloads {
        no_offloads(cluster)?;
    }
    Ok(tun)
}

/// Forwarding on, strict reverse path filter on A to E (that answers pass it is part of what is tested), no DAD delay.
fn settings(ns: &Netns) -> Result<()> {
    for scope in ["all", "default"] {
        ns.sysctl(&format!("ipv4/conf/{scope}/rp_filter"), "1")?;
        ns.sysctl(&format!("ipv6/conf/{scope}/accept_dad"), "0")?;
        ns.sysctl(&format!("ipv6/conf/{scope}/forwarding"), "1")?;
    }
    ns.sysctl("ipv4/ip_forward", "1")
}

/// The device that carries the node's addresses.
fn uplink_device(cluster: &Cluster) -> &'static str {
    match cluster.options.overlay {
        Overlay::Vlan | Overlay::VlanInFrame => "eth0.5",
        Overlay::QinQ => "eth0.5.7",
        _ => "eth0",
    }
}

fn uplink(cluster: &Cluster, node: &Node) -> Result<()> {
    let (i, fabric) = (node.index, cluster.fabric.path());
    node.ns.ip(&format!(
        "link add eth0 type veth peer name p{i} netns {}\nlink set eth0 up",
        fabric.display()
    ))?;
    cluster.fabric.ip(&format!("link set p{i} master br0 up"))?;
    match cluster.options.overlay {
        Overlay::Vlan => node.ns.ip("link add link eth0 name eth0.5 type vlan id 5\nlink set eth0.5 up")?,
        Overlay::VlanInFrame => {
            node.ns.ip("link add link eth0 name eth0.5 type vlan id 5 reorder_hdr off\nlink set eth0.5 up")?
        }
        Overlay::QinQ => node.ns.ip("link add link eth0 name eth0.5 type vlan proto 802.1ad id 5
             link set eth0.5 up
             link add link eth0.5 name eth0.5.7 type vlan id 7
             link set eth0.5.7 up")?,
        _ => {}
    }
    let device = uplink_device(cluster);
    // As on a node of a cluster there is a default route, so that ClusterIPs lead somewhere before they are translated.
    node.ns.ip(&format!(
        "addr add 10.2.0.1{i}/24 dev {device}
         addr add fd00:2::1{i}/64 dev {device} nodad
         route add default via 10.2.0.1 dev {device}
         route add default via fd00:2::1 dev {device}"
    ))
}

fn pod(node: &Node) -> Result<()> {
    let (i, path) = (node.index, node.pod.path());
    node.ns.ip(&format!(
        "link add pod0 type veth peer name eth0 netns {}
         link set pod0 up
         addr add 10.244.{i}.1/24 dev pod0
         addr add fd00:244:{i}::1/64 dev pod0 nodad",
        path.display()
    ))?;
    node.pod.ip(&format!(
        "link set eth0 up
         addr add 10.244.{i}.2/24 dev eth0
         addr add fd00:244:{i}::2/64 dev eth0 nodad
         route add default via 10.244.{i}.1
         route add default via fd00:244:{i}::1"
    ))
}

fn outside(cluster: &Cluster) -> Result<()> {
    cluster.a.ns.ip(&format!(
        "link add out0 type veth peer name eth0 netns {}
         link set out0 up
         addr add 192.0.2.1/24 dev out0
         addr add 2001:db8::1/64 dev out0 nodad",
        cluster.client.path().display()
    ))?;
    cluster.client.ip("link set eth0 up
         addr add 192.0.2.2/24 dev eth0
         addr add 2001:db8::2/64 dev eth0 nodad
         route add default via 192.0.2.1
         route add default via 2001:db8::1")
}

fn overlay(cluster: &Cluster, node: &Node) -> Result<()> {
    let i = node.index;
    let addresses = |device: &str| {
        format!(
            "link set {device} up
             addr add 10.42.0.{i}/24 dev {device}
             addr add fd00:42::{i}/64 dev {device} nodad"
        )
    };
    match cluster.options.overlay {
        Overlay::Vxlan => node.ns.ip(&format!(
            "link add vxlan0 address 0e:00:00:00:00:0{i} type vxlan id 42 local 10.2.0.1{i} dev eth0 dstport 8472 nolearning
             {}",
            addresses("vxlan0")
        )),
        Overlay::VxlanMetadata => node.ns.ip(&format!(
            "link add vxlan0 address 0e:00:00:00:00:0{i} mtu 1450 type vxlan external dstport 8472
             {}",
            addresses("vxlan0")
        )),
        Overlay::Ipip => node.ns.ip(&format!(
            "link add ipip0 type ipip local 10.2.0.1{i} dev eth0
             link set ipip0 up
             addr add 10.42.0.{i}/32 dev ipip0"
        )),
        Overlay::Tun if i != 3 => node.ns.ip(&addresses("tun0")),
        _ => Ok(()),
    }
}

/// Routes of `node` to the pods of `other`, and where that is A to the clients outside.
fn routes(cluster: &Cluster, node: &Node, other: &Node) -> Result<()> {
    let j = other.index;
    let mut v4 = vec![format!("10.244.{j}.0/24")];
    let mut v6 = vec![format!("fd00:244:{j}::/64")];
    if j == 1 {
        v4.push("192.0.2.0/24".to_owned());
        v6.push("2001:db8::/64".to_owned());
    }
    let plain = uplink_device(cluster);
    let (over4, over6) = (format!("via 10.42.0.{j} dev"), format!("via fd00:42::{j} dev"));
    let (plain4, plain6) = (format!("via 10.2.0.1{j} dev {plain}"), format!("via fd00:2::1{j} dev {plain}"));
    let (via4, via6) = match cluster.options.overlay {
        Overlay::Vxlan | Overlay::VxlanMetadata => {
            let mac = format!("0e:00:00:00:00:0{j}");
            node.ns.ip(&format!(
                "neigh add 10.42.0.{j} lladdr {mac} dev vxlan0 nud permanent
                 neigh add fd00:42::{j} lladdr {mac} dev vxlan0 nud permanent"
            ))?;
            if cluster.options.overlay == Overlay::Vxlan {
                node.ns
                    .exec(&format!("bridge fdb append {mac} dev vxlan0 dst 10.2.0.1{j} self permanent"))?;
                (format!("{over4} vxlan0"), format!("{over6} vxlan0"))
            } else {
                let encap = format!("encap ip id 42 ttl 64 dst 10.2.0.1{j}");
                // The tunnel addresses are what masquerade hides clients behind.
                node.ns.ip(&format!(
                    "route add 10.42.0.{j}/32 {encap} dev vxlan0
                     route add fd00:42::{j}/128 {encap} dev vxlan0"
                ))?;
                (format!("{encap} {over4} vxlan0"), format!("{encap} {over6} vxlan0"))
            }
        }
        Overlay::Ipip => {
            // The outer destination is the route's gateway: none may lead to the inner address itself.
            v4.push(format!("10.42.0.{j}/32"));
            (format!("via 10.2.0.1{j} dev ipip0 onlink"), plain6)
        }
        Overlay::Tun if node.index != 3 && j != 3 => ("dev tun0".to_owned(), "dev tun0".to_owned()),
        _ => (plain4, plain6),
    };
    let mut script = String::new();
    for prefix in v4 {
        script += &format!("route add {prefix} {via4}\n");
    }
    for prefix in v6 {
        script += &format!("route add {prefix} {via6}\n");
    }
    node.ns.ip(&script)
}

fn no_offloads(cluster: &Cluster) -> Result<()> {
    let off = |ns: &Netns, device: &str| ns.exec(&format!("ethtool -K {device} rx off tx off")).map(drop);
    off(&cluster.client, "eth0")?;
    off(&cluster.a.ns, "out0")?;
    for node in [&cluster.a, &cluster.b, &cluster.c] {
        off(&node.ns, "eth0")?;
        off(&node.ns, "pod0")?;
        off(&node.pod, "eth0")?;
        off(&cluster.fabric, &format!("p{}", node.index))?;
    }
    Ok(())
}
