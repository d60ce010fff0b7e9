//! Which backends' packets leave by an attached device.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    cluster::Node,
    dataplane::{Interface, InterfaceStatus, LinkLayer},
    routes::{RouteMap, Ways},
};

/// Where packets to nodes and backends leave, and which devices are attached.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    /// `None` before routes were first read.
    map: Option<Arc<RouteMap>>,
    devices: BTreeMap<u32, Interface>,
    attached: BTreeSet<u32>,
}

/// The way to an address that the cut covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The device that the route names: answers of the backend come in by it.
    pub(super) device: u32,
    /// The attached device that packets leave by: the same, or the one that it is a VLAN of.
    pub(super) attached: u32,
}

/// How many VLAN tags the programs look behind.
const MAX_TAGS: usize = 2;

impl Coverage {
    /// Coverage by routes and devices as they were read; attached to none.
    pub(super) fn new(map: Arc<RouteMap>, devices: &[Interface]) -> Self {
        let devices = devices.iter().map(|device| (device.ifindex, device.clone())).collect();
        Self { map: Some(map), devices, attached: BTreeSet::new() }
    }

    /// Whether the other coverage says the same of all addresses.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.has_same_routes(other) && self.devices == other.devices && self.attached == other.attached
    }

    /// Whether both were made from one reading of the routes.
    pub(super) fn has_same_routes(&self, other: &Self) -> bool {
        match (&self.map, &other.map) {
            (Some(ours), Some(others)) => Arc::ptr_eq(ours, others),
            (None, None) => true,
            _ => false,
        }
    }

    /// Indexes of all devices by which packets to a node and its backends may leave.
    pub(super) fn devices_to(&self, node: &Node) -> BTreeSet<u32> {
        let Some(map) = &self.map else { return BTreeSet::new() };
        let mut devices = BTreeSet::new();
        let mut last = None;
        for address in node.all_addresses() {
            let ways = map.ways(address);
            // A node's backends mostly have one range.
            if !last.is_some_and(|last| Arc::ptr_eq(last, ways)) && !ways.local {
                devices.extend(&ways.devices);
            }
            last = Some(ways);
        }
        devices
    }

    /// Names of the devices of these indexes that exist.
    pub(super) fn names(&self, ifindexes: &BTreeSet<u32>) -> Vec<String> {
        ifindexes.iter().filter_map(|ifindex| Some(self.devices.get(ifindex)?.name.clone())).collect()
    }

    /// Notes the devices that are attached.
    pub(super) fn set_attached(&mut self, statuses: &[InterfaceStatus]) {
        let attached = statuses.iter().filter(|status| status.tc.is_some());
        self.attached = attached.map(|status| status.ifindex).collect();
    }

    /// The attached device that packets which leave by `device` go through: `device` itself, one below it where it is a VLAN device, or
    /// one of its ports where it is a bridge or a bond, all of whose ports are attached.
    fn attached_below(&self, device: u32) -> Option<u32> {
        let below = |ifindex: &u32| self.devices.get(ifindex)?.parent;
        let mut ways = std::iter::successors(Some(device), below).take(MAX_TAGS + 1);
        ways.find_map(|ifindex| {
            if self.attached.contains(&ifindex) {
                return Some(ifindex);
            }
            if self.puts_tags_on(ifindex) {
                return None;
            }
            let mut ports = self.ports(ifindex);
            let first = ports.next()?;
            std::iter::once(first).chain(ports).all(|port| self.attached.contains(&port)).then_some(first)
        })
    }

    /// Whether `device` is a bridge by whose ports packets may leave in other VLANs than the route says.
    fn puts_tags_on(&self, device: u32) -> bool {
        self.devices.get(&device).is_some_and(|device| device.vlan_filtering)
    }

    fn ports(&self, master: u32) -> impl Iterator<Item = u32> {
        let of = move |device: &&Interface| device.master == Some(master);
        self.devices.values().filter(of).map(|device| device.ifindex)
    }

    /// The way by which packets to this address leave, where the cut covers it.
    ///
    /// # Errors
    /// Why there is no covered way, for the reader of `status`.
    pub(super) fn of(&self, address: IpAddr) -> Result<Way, String> {
        match &self.map {
            None => Err("not looked up yet".into()),
            Some(map) => self.way(map.ways(address)),
        }
    }

    /// The device by which answers of this backend come in, where the cut covers all known ways to it. Packets may leave uncovered by a way
    /// that is not known (a wrapped route). The backend's clients are challenged all the same, since most of what they send is cut.
    pub(super) fn entry(&self, backend: IpAddr) -> Option<u32> {
        let ways = self.map.as_ref()?.ways(backend);
        let known = Ways { unknown: None, ..Ways::clone(ways) };
        self.way(&known).ok().map(|way| way.device)
    }

    /// Whether the cut reaches a backend of this node that it did not reach `before`.
    pub(super) fn reaches_more_of(&self, node: &Node, before: &Self) -> bool {
        let is_new = |address| self.of(address).is_ok() && before.of(address).is_err();
        node.backends.iter().any(|backend| is_new(backend.address))
    }

    /// The way by which packets leave, where the cut covers all ways that they may go.
    ///
    /// # Errors
    /// Why there is no such way.
    pub(super) fn way(&self, ways: &Ways) -> Result<Way, String> {
        if ways.local {
            return Err("an address of this machine".into());
        }
        if let Some(why) = &ways.unknown {
            return Err(format!("how it leaves is not known: {why}"));
        }
        let Some((main, _)) = ways.main else { return Err("no route".into()) };
        if let Some(how) = &ways.wrapped {
            return Err(format!("{how}, and the programs do not look into that"));
        }
        for device in std::iter::once(main).chain(ways.devices.iter().copied()) {
            let leaves = if device == main { "leaves by" } else { "may leave by" };
            if let Some(who) = self.handed_to(device) {
                return Err(format!(
                    "{leaves} {}, and {who} sends it on by another device",
                    self.name(device)
                ));
            }
            if self.attached_below(device).is_none() {
                let attached = self.ports(device).any(|port| self.attached.contains(&port));
                let what = match attached {
                    true if self.puts_tags_on(device) => {
                        "which is not attached, and whose ports may send in other VLANs (vlan_filtering)"
                    }
                    true => "not all of whose ports are attached",
                    false => "which is not attached",
                };
                return Err(format!("{leaves} {}, {what}", self.name(device)));
            }
        }
        Ok(Way { device: main, attached: self.attached_below(main).unwrap_or(main) })
    }

    /// The software that takes packets from this device to another one, past the stack, so that the cut does not see all that leave.
    fn handed_to(&self, device: u32) -> Option<&'static str> {
        let device = self.devices.get(&device)?;
        match device.name.as_str() {
            "cilium_host" | "cilium_net" => Some("Cilium"),
            _ => device.ovs.then_some("Open vSwitch"),
        }
    }

    /// The next hop to this address and the device it is reached by.
    pub(super) fn next_hop(&self, address: IpAddr) -> Option<(u32, IpAddr)> {
        let ways = self.map.as_ref()?.ways(address);
        let (device, gateway) = ways.main.filter(|_| !ways.local)?;
        Some((device, gateway.unwrap_or(address)))
    }

    /// A device's name.
    pub(super) fn name(&self, ifindex: u32) -> String {
        self.devices
            .get(&ifindex)
            .map_or_else(|| format!("interface {ifindex}"), |device| device.name.clone())
    }

    /// A device's MAC address, where its packets have an Ethernet header.
    pub(super) fn mac(&self, ifindex: u32) -> Option<[u8; 6]> {
        let device = self.devices.get(&ifindex)?;
        device.mac.filter(|_| device.link_layer() == Ok(LinkLayer::L2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Backend, Scope},
        routes::{Dump, Family, Fate, Hop, Prefix, Route, Rule},
    };

    fn device(ifindex: u32, parent: Option<u32>) -> Interface {
        let name = format!("dev{ifindex}");
        Interface {
            ifindex,
            name,
            hardware: 1,
            mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
            mtu: 1500,
            parent,
            ..Interface::default()
        }
    }

    /// A route to everywhere by these devices.
    fn map(devices: &[u32]) -> Arc<RouteMap> {
        let hop = |ifindex: &u32| Hop {
            ifindex: *ifindex,
            gateway: None,
            dead: false,
            linkdown: false,
            encap: None,
        };
        let route = Route {
            to: Prefix::all(Family::V4),
            table: 254,
            metric: 0,
            only_some: false,
            fate: Fate::Leaves,
            hops: devices.iter().map(hop).collect(),
            object: None,
        };
        Arc::new(RouteMap::new(Dump { rules: Rule::defaults(), routes: vec![route], ..Dump::default() }))
    }

    #[test]
    fn a_vlan_is_covered_by_the_device_below_it() {
        let to = IpAddr::from([10, 0, 0, 2]);
        let coverage = |route: u32, attached: &[u32]| {
            let devices = [device(2, None), device(5, Some(2)), device(7, Some(5)), device(9, Some(7))];
            let mut coverage = Coverage::new(map(&[route]), &devices);
            coverage.attached = attached.iter().copied().collect();
            coverage
        };
        assert_eq!(coverage(5, &[2]).of(to), Ok(Way { device: 5, attached: 2 }));
        assert_eq!(coverage(7, &[2]).of(to), Ok(Way { device: 7, attached: 2 }));
        assert_eq!(coverage(5, &[2, 5]).of(to), Ok(Way { device: 5, attached: 5 }));
        // The programs do not look behind three tags, and what lies above covers nothing below.
        assert_eq!(coverage(9, &[2]).of(to), Err("leaves by dev9, which is not attached".into()));
        assert_eq!(coverage(2, &[5]).of(to), Err("leaves by dev2, which is not attached".into()));
        // A bridge or bond is covered by its ports, but only by all of them: a packet may take any.
        let ports = |attached: &[u32]| {
            let mut coverage = coverage(2, attached);
            for (port, master) in [(11, 2), (12, 2), (13, 5)] {
                coverage.devices.insert(port, Interface { master: Some(master), ..device(port, None) });
            }
            coverage.of(to)
        };
        assert_eq!(ports(&[11, 12]), Ok(Way { device: 2, attached: 11 }));
        assert_eq!(ports(&[11]), Err("leaves by dev2, not all of whose ports are attached".into()));
        assert_eq!(ports(&[13]), Err("leaves by dev2, which is not attached".into()));
        // A bridge that puts tags on by itself is covered by none of its ports.
        let filtering = |attached: &[u32]| {
            let mut coverage = coverage(2, attached);
            coverage.devices.insert(2, Interface { vlan_filtering: true, ..device(2, None) });
            coverage.devices.insert(11, Interface { master: Some(2), ..device(11, None) });
            coverage.of(to)
        };
        assert_eq!(filtering(&[2]), Ok(Way { device: 2, attached: 2 }));
        assert_eq!(
            filtering(&[11]),
            Err("leaves by dev2, which is not attached, and whose ports may send in other VLANs (vlan_filtering)".into())
        );
        // A backend that the cut reaches only now differs from one that it reached before, or reaches no more.
        let node = Node {
            name: "b".into(),
            uid: None,
            addresses: vec![[10, 0, 0, 9].into()],
            zone: None,
            pool: None,
            backends: vec![Backend { address: to, scope: Scope::Address }],
            left_out: Vec::new(),
        };
        let reaches = |now: &Coverage, before: &Coverage| now.reaches_more_of(&node, before);
        assert!(reaches(&coverage(2, &[2]), &coverage(2, &[5])));
        assert!(reaches(&coverage(2, &[2]), &Coverage::default()));
        assert!(!reaches(&coverage(5, &[2]), &coverage(2, &[2])));
        assert!(!reaches(&coverage(2, &[5]), &coverage(2, &[2])));
    }

    #[test]
    fn all_ways_must_be_covered() {
        let to = IpAddr::from([10, 0, 0, 2]);
        let coverage = |attached: &[u32]| {
            let others = [
                Interface { name: "cilium_host".into(), ..device(4, None) },
                Interface { ovs: true, ..device(5, None) },
            ];
            let devices: Vec<Interface> =
                [device(2, None), device(3, None)].into_iter().chain(others).collect();
            let mut coverage = Coverage::new(map(&[2, 3]), &devices);
            coverage.attached = attached.iter().copied().collect();
            coverage
        };
        assert_eq!(coverage(&[2, 3]).of(to), Ok(Way { device: 2, attached: 2 }));
        assert_eq!(coverage(&[2]).of(to), Err("may leave by dev3, which is not attached".into()));
        assert_eq!(coverage(&[3]).of(to), Err("leaves by dev2, which is not attached".into()));
        let by = |device: u32| {
            let mut coverage = coverage(&[2, 3, 4, 5]);
            coverage.map = Some(map(&[device]));
            coverage.of(to).unwrap_err()
        };
        assert_eq!(by(4), "leaves by cilium_host, and Cilium sends it on by another device");
        assert_eq!(by(5), "leaves by dev5, and Open vSwitch sends it on by another device");
        let mut unknown = Ways { main: Some((2, None)), devices: vec![2], ..Ways::default() };
        assert!(coverage(&[2]).way(&unknown).is_ok());
        unknown.unknown = Some("policy rule 9 asks for a tunnel's key".into());
        assert_eq!(
            coverage(&[2]).way(&unknown),
            Err("how it leaves is not known: policy rule 9 asks for a tunnel's key".into())
        );
        let wrapped = Some("leaves by IPsec (policy to 10.0.0.0/8)".to_owned());
        let wrapped = Ways { wrapped, unknown: None, ..unknown };
        assert_eq!(
            coverage(&[2]).way(&wrapped),
            Err("leaves by IPsec (policy to 10.0.0.0/8), and the programs do not look into that".into())
        );
        assert_eq!(Coverage::default().of(to), Err("not looked up yet".into()));
        let one = coverage(&[2]);
        let mut other = one.clone();
        assert!(one.is_same(&other));
        other.attached.insert(3);
        assert!(!one.is_same(&other) && !one.is_same(&coverage(&[2])), "another reading is another map");
    }
}
