//! Ports of nodes' backends that Services name: what of an exempt address is cut all the same, where it is not exempt itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    cluster::{ClusterView, NodeIx, Service},
    list::List,
    plan::{At, KeptPort},
};

/// Ports, each with the Service that names it, by its index in the view. Sorted, each once.
type Ports = Arc<[(KeptPort, u32)]>;

/// What Services name, by the view's position of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    of: List<Option<Ports>>,
}

impl Named {
    /// Of a whole view.
    pub(super) fn new(view: &ClusterView) -> Self {
        let mut of: Vec<Vec<(KeptPort, u32)>> = vec![Vec::new(); view.nodes.len()];
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            for port in ports_of(service) {
                if let Some(ports) = of.get_mut(port.node.position()) {
                    ports.push((port, s));
                }
            }
        }
        Self { of: of.into_iter().map(sorted).collect() }
    }

    /// Has it follow on to another view of the same nodes and Services, of which these Services changed.
    pub(super) fn follow(&mut self, before: &ClusterView, view: &ClusterView, services: &[u32]) {
        let service = |view: &ClusterView, s: u32| {
            view.services.as_ref().and_then(|services| services.get(s as usize)).cloned()
        };
        let mut touched: BTreeMap<NodeIx, Vec<(KeptPort, u32)>> = BTreeMap::new();
        for &s in services {
            for port in service(before, s).iter().flat_map(|service| ports_of(service)) {
                touched.entry(port.node).or_default();
            }
            for port in service(view, s).iter().flat_map(|service| ports_of(service)) {
                touched.entry(port.node).or_default().push((port, s));
            }
        }
        for (node, mut ports) in touched {
            let Some(there) = self.of.get_mut(node.position()) else { continue };
            let stay = there.iter().flat_map(|ports| ports.iter());
            // Those that changed are in order.
            ports.extend(stay.filter(|(_, s)| services.binary_search(s).is_err()));
            *there = sorted(ports);
        }
    }

    /// What is named at an address.
    pub(super) fn at(&self, at: At) -> BTreeSet<KeptPort> {
        let (node, address) = at;
        let ports = self.of.get(node.position()).and_then(Option::as_deref).unwrap_or_default();
        let from = ports.partition_point(|(port, _)| port.address < address);
        let ports = ports.iter().skip(from).map(|(port, _)| *port);
        ports.take_while(|port| port.address == address).collect()
    }
}

fn sorted(mut ports: Vec<(KeptPort, u32)>) -> Option<Ports> {
    ports.sort_unstable();
    ports.dedup();
    (!ports.is_empty()).then(|| ports.into())
}

/// Where its endpoints take traffic, as far as they are tied to a node.
fn ports_of(service: &Service) -> impl Iterator<Item = KeptPort> + '_ {
    service.endpoints.iter().flat_map(move |endpoint| {
        (0..service.ports.len()).filter_map(move |port| KeptPort::of(service, port, endpoint, endpoint.node))
    })
}
