use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    net::IpAddr,
};

use crate::{
    cluster::ClusterView,
    dataplane::{Error, Interface, InterfaceStatus, LinkLayer, route},
};

/// Where packets to the nodes and backends leave, and on which of these devices we are.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    routes: HashMap<IpAddr, Option<route::Route>>,
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
    /// Looks up where packets to all nodes but the own one, and to their backends, leave.
    ///
    /// # Errors
    /// Where the kernel cannot be asked.
    pub(super) fn look_up(view: &ClusterView, own_node: &str, devices: &[Interface]) -> Result<Self, Error> {
        let mut lookup = route::Lookup::open()?;
        let mut this = Self::default();
        for node in view.nodes.iter().filter(|node| node.name != own_node) {
            for address in std::iter::once(node.address).chain(node.backends.iter().map(|b| b.address)) {
                if let Entry::Vacant(unknown) = this.routes.entry(address) {
                    unknown.insert(lookup.route(address)?);
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

    /// The attached device that packets go through which leave by `device`: itself, or below it while it is a VLAN device.
    fn attached_below(&self, device: u32) -> Option<u32> {
        let below = |ifindex: &u32| self.devices.get(ifindex)?.parent;
        let mut ways = std::iter::successors(Some(device), below).take(MAX_TAGS + 1);
        ways.find(|ifindex| self.attached.contains(ifindex))
    }

    /// The way by which packets to this address leave, where the cut covers it.
    ///
    /// # Errors
    /// Why there is none, for whoever asks.
    pub(super) fn of(&self, address: IpAddr) -> Result<Way, String> {
        let Some(route) = self.routes.get(&address) else { return Err("not looked up yet".into()) };
        let Some(route) = route else { return Err("no route".into()) };
        if route.local {
            return Err("an address of this machine".into());
        }
        let mut ways = std::iter::once(&route.ifindex).chain(&route.others);
        if let Some(ifindex) = ways.find(|ifindex| self.attached_below(**ifindex).is_none()) {
            return Err(format!("leaves by {}, which is not attached", self.name(*ifindex)));
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
                routes: HashMap::from([(to, Some(route))]),
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
    }
}
