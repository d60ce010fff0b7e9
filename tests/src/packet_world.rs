//! A small world with every kind of node and backend, for the model and for the maps.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use nodefence_common::{
    Action, Addr, BackendEntry, Device, MacKey, NodeEntry, PortKey, RouteVlan, Verdict, backend_flags,
    port_flags,
};

use crate::{
    model::{Backend, Ip, Node, Order, World},
    packet::Programs,
    packet_frame::{OWN_MAC, PEER_MAC, ROUTE_VLANS},
};

/// A healthy node.
pub const HEALTHY: u32 = 0;
/// A node whose packets are refused.
pub const REFUSE: u32 = 1;
/// A node whose packets are dropped.
pub const DROP: u32 = 2;
/// A node whose packets are only counted.
pub const OBSERVE: u32 = 3;
/// The own node.
pub const IGNORE: u32 = 4;
/// A node whose verdict has lapsed.
pub const LAPSED: u32 = 5;
/// A node whose index has a new owner.
pub const STALE: u32 = 6;
/// A node with a host-network backend.
pub const HOST: u32 = 7;
/// A node whose packets are refused. The addresses of its backends are exempt, except for one port.
pub const EXEMPT: u32 = 8;
/// The last node.
pub const LAST: u32 = EXEMPT;
/// The port of the host-network backend. Also the only port of [`EXEMPT`]'s backends that is cut.
pub const HOST_PORT: u16 = 9_100;
/// An exempt port of the host-network backend, and of [`EXEMPT`]'s backends. At this port each of them is the last endpoint of a Service.
pub const EXEMPT_PORT: u16 = 9_101;
/// A port that no Service names. Answers to a backend's own requests come to such a port.
pub const ANSWER_PORT: u16 = 40_000;
/// The index of the device that BPF_PROG_TEST_RUN pretends, which is loopback.
pub const IFINDEX: u32 = 1;

/// The IPv4 backend of a node.
pub fn v4(node: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 244, node as u8, 7))
}

/// The IPv6 backend of a node.
pub fn v6(node: u32) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, node as u16, 0, 0, 0, 7))
}

/// The bytes of an address.
pub fn bytes(ip: IpAddr) -> Ip {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Backends that no cluster file may name. They show that no answer ever comes from such addresses.
pub fn odd_backends() -> Vec<IpAddr> {
    ["224.0.0.9", "255.255.255.255", "127.0.0.9", "0.0.0.9", "ff02::9", "::1", "::"]
        .into_iter()
        .filter_map(|ip| ip.parse().ok())
        .collect()
}

/// The world, with a backend of each IP version on each node, and with [`odd_backends`].
pub fn world() -> World {
    let mut world = World { mac: PEER_MAC, own_macs: [OWN_MAC].into(), ..World::default() };
    world.route_vlans = ROUTE_VLANS.into();
    for (index, order) in [
        (HEALTHY, Order::Nothing),
        (REFUSE, Order::Refuse),
        (DROP, Order::Drop),
        (OBSERVE, Order::Observe),
        (IGNORE, Order::Ignore),
        (LAPSED, Order::Refuse),
        (STALE, Order::Refuse),
        (HOST, Order::Refuse),
        (EXEMPT, Order::Refuse),
    ] {
        world.nodes.insert(index, Node { order, lapsed: index == LAPSED, generation: 10 + index });
        let generation = if index == STALE { 3 } else { 10 + index };
        for ip in [v4(index), v6(index)] {
            world
                .backends
                .insert(bytes(ip), Backend { node: index, generation, host_network: index == HOST });
        }
    }
    for node in [HOST, EXEMPT] {
        for ip in [v4(node), v6(node)] {
            add_ports(&mut world, ip, node);
        }
    }
    for ip in odd_backends() {
        world
            .backends
            .insert(bytes(ip), Backend { node: REFUSE, generation: 10 + REFUSE, host_network: false });
    }
    world
}

/// Adds the port entries of a backend of [`HOST`] or [`EXEMPT`].
pub fn add_ports(world: &mut World, ip: IpAddr, node: u32) {
    for protocol in [6, 17, 132] {
        world.exempt.insert((bytes(ip), EXEMPT_PORT, protocol));
        if node == EXEMPT {
            world.cut.insert((bytes(ip), HOST_PORT, protocol));
        }
        if node == HOST {
            world.ports.extend([HOST_PORT, EXEMPT_PORT].map(|port| (bytes(ip), port, protocol)));
        }
    }
}

fn addr(ip: &[u8]) -> Addr {
    match <[u8; 4]>::try_from(ip) {
        Ok(v4) => Addr::v4(v4),
        Err(_) => Addr::v6(ip.try_into().expect("an address of 4 or 16 bytes")),
    }
}

/// A name as the map `nodes` stores it.
pub fn name(text: &str) -> [u8; 28] {
    let mut out = [0; 28];
    out[..text.len()].copy_from_slice(text.as_bytes());
    out
}

/// Writes a world into the maps.
///
/// # Errors
/// Fails if a map cannot be written.
pub fn install(programs: &mut Programs, world: &World) -> Result<()> {
    for (index, node) in &world.nodes {
        let (verdict, action) = match node.order {
            Order::Nothing => (Verdict::Healthy, Action::Refuse),
            Order::Refuse => (Verdict::Flagged, Action::Refuse),
            Order::Drop => (Verdict::Flagged, Action::Drop),
            Order::Observe => (Verdict::Flagged, Action::Observe),
            Order::Ignore => (Verdict::Flagged, Action::Ignore),
        };
        programs.node(
            *index,
            NodeEntry {
                verdict: verdict as u32,
                action: action as u32,
                until: if node.lapsed { 1 } else { u64::MAX },
                generation: node.generation,
                name: name(&format!("node-{index}")),
            },
        )?;
    }
    for (ip, backend) in &world.backends {
        let flags = if backend.host_network { backend_flags::PORT_SCOPED } else { 0 };
        programs
            .backend(addr(ip), BackendEntry { node: backend.node, generation: backend.generation, flags })?;
    }
    for (ip, port, protocol) in &world.ports {
        programs.port(PortKey::endpoint(addr(ip), *port, *protocol), port_flags::CUT)?;
    }
    for (ip, port, protocol) in &world.cut {
        programs.port(PortKey::exempt(addr(ip), *port, *protocol), port_flags::CUT)?;
    }
    for (ip, port, protocol) in &world.exempt {
        programs.port(PortKey::exempt(addr(ip), *port, *protocol), port_flags::EXEMPT)?;
        if world.backends.get(ip).is_some_and(|backend| !backend.host_network) {
            programs.port(PortKey::exempt_address(addr(ip)), port_flags::EXEMPT)?;
        }
    }
    for mac in &world.own_macs {
        programs.mac(MacKey::new(*mac))?;
    }
    for (outer, inner) in &world.route_vlans {
        // For a VLAN without a usual address the program looks the address up.
        let usual = if *inner == 0 { MacKey::new(OWN_MAC) } else { MacKey::NONE };
        programs.route_vlan(RouteVlan { ifindex: IFINDEX, outer: *outer, inner: *inner }, usual)?;
    }
    programs
        .device(IFINDEX, Device { mac: world.mac, vlans: world.vlans.into(), generic: world.generic.into() })
}
