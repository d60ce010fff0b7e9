//! Which Service a virtual address or a node port leads to. Where several Services claim one, the first of them by name has it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    net::IpAddr,
    sync::Arc,
};

use foldhash::fast::RandomState;

use super::{
    super::{object::ServiceObject, protocol::Protocol},
    check::{Fault, lists},
    owners::Unit,
};

/// A way that leads to one Service alone: a virtual address and port, or a node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum By {
    Address(IpAddr, u16, Protocol),
    NodePort(u16, Protocol),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip, port, protocol) => {
                write!(f, "{ip} of port {port}/{protocol} is a virtual address")
            }
            Self::NodePort(port, protocol) => write!(f, "{port}/{protocol} is the node port"),
        }
    }
}

/// The Services that claim each way.
#[derive(Debug, Default)]
pub(super) struct Reached(HashMap<By, Names, RandomState>);

/// Names of Services in their order. Most ways have one for good.
type Names = Vec<Arc<str>>;

impl Reached {
    /// Claims all ways to a Service. Adds to `dirty` the Services that claim one of them too.
    pub(super) fn claim(&mut self, service: &ServiceObject, dirty: &mut BTreeSet<Unit>) {
        for (_, by) in ways(service) {
            let names = self.0.entry(by).or_default();
            dirty.extend(names.iter().cloned().map(Unit::Service));
            if let Err(at) = names.binary_search(&service.name) {
                names.reserve_exact(1);
                names.insert(at, Arc::clone(&service.name));
            }
        }
    }

    /// Releases all ways to a Service. Adds to `dirty` the Services that claim one of them too.
    pub(super) fn release(&mut self, service: &ServiceObject, dirty: &mut BTreeSet<Unit>) {
        for (_, by) in ways(service) {
            let Some(names) = self.0.get_mut(&by) else { continue };
            if let Ok(at) = names.binary_search(&service.name) {
                names.remove(at);
            }
            dirty.extend(names.iter().cloned().map(Unit::Service));
            if names.is_empty() {
                self.0.remove(&by);
            }
        }
    }

    /// Faults of ways that lead to the Service twice, or to another Service that comes before it.
    pub(super) fn faults(&self, service: &ServiceObject) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut own = HashSet::new();
        for (field, by) in ways(service) {
            let first = self.0.get(&by).and_then(|names| names.first());
            if !own.insert(by) {
                faults.push((field, format!("{by} of this Service already")));
            } else if let Some(first) = first.filter(|first| **first != service.name) {
                faults.push((field, format!("{by} of Service `{first}` already")));
            }
        }
        faults
    }
}

/// All ways to the Service, and the fields that name them.
fn ways(service: &ServiceObject) -> Vec<(String, By)> {
    let mut ways = Vec::new();
    for (field, ips) in lists(service) {
        // A load balancer's address may be an external one as well: the same policy applies.
        let again = |ip: &&IpAddr| field == "loadBalancerIPs" && service.external_ips.contains(ip);
        for (i, ip) in ips.iter().enumerate().filter(|(_, ip)| !again(ip)) {
            let by = service.ports.iter().map(|port| By::Address(*ip, port.port, port.protocol));
            ways.extend(by.map(|by| (format!("{field}[{i}]"), by)));
        }
    }
    for (p, port) in service.ports.iter().enumerate() {
        let by = port.node_port.map(|number| By::NodePort(number, port.protocol));
        ways.extend(by.map(|by| (format!("ports[{p}].nodePort"), by)));
    }
    ways
}
