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
    names: BTreeMap<u32, String>,
    attached: BTreeMap<u32, Option<[u8; 6]>>,
}

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
        this.names = devices.iter().map(|device| (device.ifindex, device.name.clone())).collect();
        Ok(this)
    }

    /// Names of the devices by which packets leave, for `--interface auto`.
    pub(super) fn devices(&self) -> Vec<String> {
        let routes = self.routes.values().flatten().filter(|route| !route.local);
        let used: BTreeSet<u32> = routes
            .flat_map(|route| std::iter::once(route.ifindex).chain(route.others.iter().copied()))
            .collect();
        used.iter().filter_map(|ifindex| self.names.get(ifindex).cloned()).collect()
    }

    /// Takes note of the devices that we are attached to.
    pub(super) fn set_attached(&mut self, statuses: &[InterfaceStatus], devices: &[Interface]) {
        let mac = |status: &InterfaceStatus| {
            let device = devices.iter().find(|device| device.ifindex == status.ifindex)?;
            device.mac.filter(|_| status.link_layer == Some(LinkLayer::L2))
        };
        let attached = statuses.iter().filter(|status| status.tc.is_some());
        self.attached = attached.map(|status| (status.ifindex, mac(status))).collect();
    }

    /// The attached device by which packets to this address leave.
    ///
    /// # Errors
    /// Why there is none, for whoever asks.
    pub(super) fn of(&self, address: IpAddr) -> Result<u32, String> {
        let Some(route) = self.routes.get(&address) else { return Err("not looked up yet".into()) };
        let Some(route) = route else { return Err("no route".into()) };
        if route.local {
            return Err("an address of this machine".into());
        }
        let mut ways = std::iter::once(&route.ifindex).chain(&route.others);
        match ways.find(|ifindex| !self.attached.contains_key(ifindex)) {
            None => Ok(route.ifindex),
            Some(ifindex) => Err(format!("leaves by {}, which is not attached", self.name(*ifindex))),
        }
    }

    /// The next hop to this address and the device it is reached by.
    pub(super) fn next_hop(&self, address: IpAddr) -> Option<(u32, IpAddr)> {
        let route = self.routes.get(&address)?.as_ref().filter(|route| !route.local)?;
        Some((route.ifindex, route.gateway.unwrap_or(address)))
    }

    /// A device's name.
    pub(super) fn name(&self, ifindex: u32) -> String {
        self.names.get(&ifindex).cloned().unwrap_or_else(|| format!("interface {ifindex}"))
    }

    /// An attached device's MAC address, where its packets have an Ethernet header.
    pub(super) fn mac(&self, ifindex: u32) -> Option<[u8; 6]> {
        self.attached.get(&ifindex).copied().flatten()
    }
}
