//! Devices, addresses and routes of the cluster.

use anyhow::{Context as _, Result};

use super::cluster::{Cluster, Node, Overlay};
use crate::{Netns, tun::TunPair};

pub(super) fn build(cluster: &Cluster) -> Result<Option<TunPair>> {
    let nodes = [&cluster.a, &cluster.b, &cluster.c];
    for ns in [&cluster.client, &cluster.fabric] {
        settings(ns)?;
    }
    for node in nodes {
        settings(&node.ns)?;
        settings(&node.pod)?;
    }
    fabric(cluster).context("switch between the nodes")?;
    for node in nodes {
        let mut script = uplink(cluster, node) + &pod(node);
        if node.index == 1 {
            script += &outside(cluster);
        }
        node.ns.ip(&script).with_context(|| format!("uplink and pod of {}", node.name))?;
        inside(node).with_context(|| format!("pod of {}", node.name))?;
    }
    client(cluster).context("client outside")?;
    let tun = match cluster.options.overlay {
        Overlay::Tun => Some(TunPair::new(&cluster.a.ns, &cluster.b.ns, "tun0")?),
        _ => None,
    };
    for node in nodes {
        let mut script = overlay(cluster, node);
        for other in nodes.into_iter().filter(|other| other.index != node.index) {
            script += &routes(cluster, node, other);
        }
        node.ns.ip(&script).with_context(|| format!("overlay and routes of {}", node.name))?;
        forwarding_entries(cluster, node).with_context(|| format!("overlay of {}", node.name))?;
    }
    if !cluster.options.offloads {
        no_offloads(cluster)?;
    }
    Ok(tun)
}

/// Sets the sysctls of a namespace: forwarding, a strict reverse path filter, which answers must pass, and no delay by duplicate address detection.
fn settings(ns: &Netns) -> Result<()> {
    for scope in ["all", "default"] {
        ns.sysctl(&format!("ipv4/conf/{scope}/rp_filter"), "1")?;
        ns.sysctl(&format!("ipv6/conf/{scope}/accept_dad"), "0")?;
        ns.sysctl(&format!("ipv6/conf/{scope}/forwarding"), "1")?;
    }
    ns.sysctl("ipv4/ip_forward", "1")
}

/// The device that has the node's addresses.
fn uplink_device(cluster: &Cluster) -> &'static str {
    match cluster.options.overlay {
        Overlay::Vlan | Overlay::VlanInFrame => "eth0.5",
        Overlay::QinQ => "eth0.5.7",
        _ => "eth0",
    }
}

/// Makes a bridge and the nodes' uplinks, whose far ends are ports of the bridge.
fn fabric(cluster: &Cluster) -> Result<()> {
    let mut script = String::from("link set lo up\nlink add br0 type bridge\nlink set br0 up\n");
    for node in [&cluster.a, &cluster.b, &cluster.c] {
        let i = node.index;
        let path = node.ns.path();
        script += &format!(
            "link add p{i} type veth peer name eth0 netns {}\nlink set p{i} master br0 up\n",
            path.display()
        );
    }
    cluster.fabric.ip(&script)
}

/// The script for a node's uplink: its VLAN devices, addresses and default routes.
fn uplink(cluster: &Cluster, node: &Node) -> String {
    let i = node.index;
    let vlan = match cluster.options.overlay {
        Overlay::Vlan => "link add link eth0 name eth0.5 type vlan id 5\nlink set eth0.5 up",
        Overlay::VlanInFrame => {
            "link add link eth0 name eth0.5 type vlan id 5 reorder_hdr off\nlink set eth0.5 up"
        }
        Overlay::QinQ => {
            "link add link eth0 name eth0.5 type vlan proto 802.1ad id 5
             link set eth0.5 up
             link add link eth0.5 name eth0.5.7 type vlan id 7
             link set eth0.5.7 up"
        }
        _ => "",
    };
    let device = uplink_device(cluster);
    // A node of a cluster has a default route, so that packets to ClusterIPs have a route before their translation.
    format!(
        "link set lo up
         link set eth0 up
         {vlan}
         addr add 10.2.0.1{i}/24 dev {device}
         addr add fd00:2::1{i}/64 dev {device} nodad
         route add default via 10.2.0.1 dev {device}
         route add default via fd00:2::1 dev {device}\n"
    )
}

fn pod(node: &Node) -> String {
    let i = node.index;
    let path = node.pod.path();
    format!(
        "link add pod0 type veth peer name eth0 netns {}
         link set pod0 up
         addr add 10.244.{i}.1/24 dev pod0
         addr add fd00:244:{i}::1/64 dev pod0 nodad\n",
        path.display()
    )
}

fn inside(node: &Node) -> Result<()> {
    let i = node.index;
    node.pod.ip(&format!(
        "link set lo up
         link set eth0 up
         addr add 10.244.{i}.2/24 dev eth0
         addr add fd00:244:{i}::2/64 dev eth0 nodad
         route add default via 10.244.{i}.1
         route add default via fd00:244:{i}::1"
    ))
}

fn outside(cluster: &Cluster) -> String {
    format!(
        "link add out0 type veth peer name eth0 netns {}
         link set out0 up
         addr add 192.0.2.1/24 dev out0
         addr add 2001:db8::1/64 dev out0 nodad\n",
        cluster.client.path().display()
    )
}

fn client(cluster: &Cluster) -> Result<()> {
    cluster.client.ip("link set lo up
         link set eth0 up
         addr add 192.0.2.2/24 dev eth0
         addr add 2001:db8::2/64 dev eth0 nodad
         route add default via 192.0.2.1
         route add default via 2001:db8::1")
}

fn overlay(cluster: &Cluster, node: &Node) -> String {
    let i = node.index;
    let addresses = |device: &str| {
        format!(
            "link set {device} up
             addr add 10.42.0.{i}/24 dev {device}
             addr add fd00:42::{i}/64 dev {device} nodad\n"
        )
    };
    match cluster.options.overlay {
        Overlay::Vxlan => format!(
            "link add vxlan0 address 0e:00:00:00:00:0{i} type vxlan id 42 local 10.2.0.1{i} dev eth0 dstport 8472 nolearning
             {}",
            addresses("vxlan0")
        ),
        Overlay::VxlanMetadata => format!(
            "link add vxlan0 address 0e:00:00:00:00:0{i} mtu 1450 type vxlan external dstport 8472
             {}",
            addresses("vxlan0")
        ),
        Overlay::Ipip => format!(
            "link add ipip0 type ipip local 10.2.0.1{i} dev eth0
             link set ipip0 up
             addr add 10.42.0.{i}/32 dev ipip0\n"
        ),
        Overlay::Tun if i != 3 => addresses("tun0"),
        _ => String::new(),
    }
}

/// Writes VXLAN's forwarding entries for the other nodes, as flannel does. `ip` cannot write these.
fn forwarding_entries(cluster: &Cluster, node: &Node) -> Result<()> {
    if cluster.options.overlay != Overlay::Vxlan {
        return Ok(());
    }
    let entries: String = [1, 2, 3]
        .into_iter()
        .filter(|other| *other != node.index)
        .map(|other| {
            format!("fdb append 0e:00:00:00:00:0{other} dev vxlan0 dst 10.2.0.1{other} self permanent\n")
        })
        .collect();
    node.ns.feed("bridge -batch -", &entries).map(drop)
}

/// The script for the routes of `node` to the pods of `other`. If `other` is A, also for the routes to the clients outside.
fn routes(cluster: &Cluster, node: &Node, other: &Node) -> String {
    let j = other.index;
    let mut script = String::new();
    let mut v4 = vec![format!("10.244.{j}.0/24")];
    let mut v6 = vec![format!("fd00:244:{j}::/64")];
    if j == 1 {
        v4.push("192.0.2.0/24".to_owned());
        v6.push("2001:db8::/64".to_owned());
    }
    let plain = uplink_device(cluster);
    let over4 = format!("via 10.42.0.{j} dev");
    let over6 = format!("via fd00:42::{j} dev");
    let plain4 = format!("via 10.2.0.1{j} dev {plain}");
    let plain6 = format!("via fd00:2::1{j} dev {plain}");
    let (via4, via6) = match cluster.options.overlay {
        Overlay::Vxlan | Overlay::VxlanMetadata => {
            let mac = format!("0e:00:00:00:00:0{j}");
            script += &format!(
                "neigh add 10.42.0.{j} lladdr {mac} dev vxlan0 nud permanent
                 neigh add fd00:42::{j} lladdr {mac} dev vxlan0 nud permanent\n"
            );
            if cluster.options.overlay == Overlay::Vxlan {
                (format!("{over4} vxlan0"), format!("{over6} vxlan0"))
            } else {
                let encap = format!("encap ip id 42 ttl 64 dst 10.2.0.1{j}");
                // Masquerade hides clients behind the tunnel addresses.
                script += &format!(
                    "route add 10.42.0.{j}/32 {encap} dev vxlan0
                     route add fd00:42::{j}/128 {encap} dev vxlan0\n"
                );
                (format!("{encap} {over4} vxlan0"), format!("{encap} {over6} vxlan0"))
            }
        }
        Overlay::Ipip => {
            // The route's gateway becomes the outer destination, so the gateway must not be the inner address itself.
            v4.push(format!("10.42.0.{j}/32"));
            (format!("via 10.2.0.1{j} dev ipip0 onlink"), plain6)
        }
        Overlay::Tun if node.index != 3 && j != 3 => ("dev tun0".to_owned(), "dev tun0".to_owned()),
        _ => (plain4, plain6),
    };
    for prefix in v4 {
        script += &format!("route add {prefix} {via4}\n");
    }
    for prefix in v6 {
        script += &format!("route add {prefix} {via6}\n");
    }
    script
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
