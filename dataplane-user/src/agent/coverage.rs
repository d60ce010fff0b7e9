//! Which backends' packets leave by an attached device.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    cluster::{ClusterView, Node, NodeIx},
    dataplane::{Error, Interface, InterfaceStatus, LinkLayer, route},
};

/// Where packets to the nodes and backends leave, and on which of these devices we are.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    /// A few routes lead to a hundred thousand addresses.
    routes: HashMap<IpAddr, Option<Arc<route::Route>>>,
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

/// Tags that the programs look behind.
const MAX_TAGS: usize = 2;

impl Coverage {
    /// Looks up where packets to nodes and their backends leave; to all of them but `skipped`.
    ///
    /// # Errors
    /// Where the kernel cannot be asked.
    pub(super) fn look_up(
        view: &ClusterView,
        skipped: Option<NodeIx>,
        devices: &[Interface],
    ) -> Result<Self, Error> {
        let mut lookup = route::Lookup::open()?;
        let (mut this, mut known) = (Self::default(), HashSet::new());
        for (_, node) in view.indexed().filter(|(at, _)| Some(*at) != skipped) {
            for address in std::iter::once(node.address).chain(node.backends.iter().map(|b| b.address)) {
                if let Entry::Vacant(unknown) = this.routes.entry(address) {
                    let route = lookup.route(address)?.map(Arc::new);
                    unknown.insert(route.map(|route| match known.get(&route) {
                        Some(same) => Arc::clone(same),
                        None => {
                            known.insert(Arc::clone(&route));
                            route
                        }
                    }));
                }
            }
        }
        this.devices = devices.iter().map(|device| (device.ifindex, device.clone())).collect();
        Ok(this)
    }

    /// Names of the devices by which packets leave, for `--interface auto`.
    pub(super) fn devices(&self) -> Vec<String> {
        let routes = self.routes.values().flatten().filter(|route| !route.local);
        let used: BTreeSet<u32> = routes
            .flat_map(|route| std::iter::once(route.ifindex).chain(route.others.iter().copied()))
            .collect();
        used.iter().filter_map(|ifindex| Some(self.devices.get(ifindex)?.name.clone())).collect()
    }

    /// Takes note of the devices that we are attached to.
    pub(super) fn set_attached(&mut self, statuses: &[InterfaceStatus]) {
        let attached = statuses.iter().filter(|status| status.tc.is_some());
        self.attached = attached.map(|status| status.ifindex).collect();
    }

    /// The attached device that packets go through which leave by `device`: itself, or below it while it is a VLAN device; a port
    /// of it where it is a bridge or a bond, all of whose ports are attached.
    fn attached_below(&self, device: u32) -> Option<u32> {
        let below = |ifindex: &u32| self.devices.get(ifindex)?.parent;
        let mut ways = std::iter::successors(Some(device), below).take(MAX_TAGS + 1);
        ways.find_map(|ifindex| {
            if self.attached.contains(&ifindex) {
                return Some(ifindex);
            }
            let mut ports = self.ports(ifindex);
            let first = ports.next()?;
            std::iter::once(first).chain(ports).all(|port| self.attached.contains(&port)).then_some(first)
        })
    }

    fn ports(&self, master: u32) -> impl Iterator<Item = u32> {
        let of = move |device: &&Interface| device.master == Some(master);
        self.devices.values().filter(of).map(|device| device.ifindex)
    }

    /// The way by which packets to this address leave, where the cut covers it.
    ///
    /// # Errors
    /// Why there is none, for whoever asks.
    pub(super) fn of(&self, address: IpAddr) -> Result<Way, String> {
        match self.routes.get(&address) {
            None => Err("not looked up yet".into()),
            Some(None) => Err("no route".into()),
            Some(Some(route)) => self.way(route),
        }
    }

    /// Whether the cut reaches a backend of this node that it did not reach `before`.
    pub(super) fn reaches_more_of(&self, node: &Node, before: &Self) -> bool {
        node.backends.iter().any(|b| self.of(b.address).is_ok() && before.of(b.address).is_err())
    }

    /// The way by which packets with this route leave, where the cut covers it.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn way(&self, route: &route::Route) -> Result<Way, String> {
        if route.local {
            return Err("an address of this machine".into());
        }
        let mut ways = std::iter::once(&route.ifindex).chain(&route.others);
        if let Some(ifindex) = ways.find(|ifindex| self.attached_below(**ifindex).is_none()) {
            let attached = self.ports(*ifindex).any(|port| self.attached.contains(&port));
            let what = if attached { "not all of whose ports are attached" } else { "which is not attached" };
            return Err(format!("leaves by {}, {what}", self.name(*ifindex)));
        }
        let attached = self.attached_below(route.ifindex).unwrap_or(route.ifindex);
        Ok(Way { device: route.ifindex, attached })
    }

    /// The next hop to this address and the device it is reached by.
    pub(super) fn next_hop(&self, address: IpAddr) -> Option<(u32, IpAddr)> {
        let route = self.routes.get(&address)?.as_ref().filter(|route| !route.local)?;
        Some((route.ifindex, route.gateway.unwrap_or(address)))
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
    use crate::cluster::{Backend, Scope};

    fn device(ifindex: u32, parent: Option<u32>) -> Interface {
        let name = format!("dev{ifindex}");
        Interface {
            ifindex,
            name,
            hardware: 1,
            mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
            mtu: 1500,
            parent,
            master: None,
            vlans: false,
            veth: false,
            xdp: None,
        }
    }

    #[test]
    fn a_vlan_is_covered_by_the_device_below_it() {
        let to = IpAddr::from([10, 0, 0, 2]);
        let coverage = |route: u32, attached: &[u32]| {
            let route = route::Route {
                ifindex: route,
                others: Vec::new(),
                gateway: None,
                source: None,
                local: false,
            };
            let devices = [device(2, None), device(5, Some(2)), device(7, Some(5)), device(9, Some(7))];
            Coverage {
                routes: HashMap::from([(to, Some(Arc::new(route)))]),
                devices: devices.into_iter().map(|device| (device.ifindex, device)).collect(),
                attached: attached.iter().copied().collect(),
            }
        };
        assert_eq!(coverage(5, &[2]).of(to), Ok(Way { device: 5, attached: 2 }));
        assert_eq!(coverage(7, &[2]).of(to), Ok(Way { device: 7, attached: 2 }));
        assert_eq!(coverage(5, &[2, 5]).of(to), Ok(Way { device: 5, attached: 5 }));
        // The programs do not look behind three tags, and what lies above covers nothing below.
        assert_eq!(coverage(9, &[2]).of(to), Err("leaves by dev9, which is not attached".into()));
        assert_eq!(coverage(2, &[5]).of(to), Err("leaves by dev2, which is not attached".into()));
        // A bridge or bond is covered by its ports, by all of them only: who knows which one a packet takes.
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
        // What the cut reaches only now is told from what it reached before, or reaches no more.
        let node = Node {
            name: "b".into(),
            address: [10, 0, 0, 9].into(),
            zone: None,
            backends: vec![Backend { address: to, scope: Scope::Address }],
        };
        let reaches = |now: &Coverage, before: &Coverage| now.reaches_more_of(&node, before);
        assert!(reaches(&coverage(2, &[2]), &coverage(2, &[5])));
        assert!(reaches(&coverage(2, &[2]), &Coverage::default()));
        assert!(!reaches(&coverage(5, &[2]), &coverage(2, &[2])));
        assert!(!reaches(&coverage(2, &[5]), &coverage(2, &[2])));
    }
}
