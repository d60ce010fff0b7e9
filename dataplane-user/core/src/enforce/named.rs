//! Ports of nodes' backends that Services name: what of an exempt address is cut all the same, where it is not exempt itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    cluster::{ClusterView, NodeIx, Service},
    list::List,
    plan::{At, ExemptPort},
};

/// What Services name. Of a node the Services are kept, which the view has anyway, and not their ports: there is one of these for each endpoint at least.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    services: List<Arc<Service>>,
    /// By the view's position of a node, the Services that name something on it, by their index. Sorted, each once.
    by_node: List<Option<Arc<[u32]>>>,
}

impl Named {
    /// Of a whole view.
    pub(super) fn new(view: &ClusterView) -> Self {
        let mut by_node: Vec<Vec<u32>> = vec![Vec::new(); view.nodes.len()];
        for (s, service) in (0..).zip(view.services.iter().flatten()) {
            for node in nodes_of(service) {
                if let Some(services) = by_node.get_mut(node.position()) {
                    services.push(s);
                }
            }
        }
        Self {
            services: view.services.iter().flatten().cloned().collect(),
            by_node: by_node.into_iter().map(shared).collect(),
        }
    }

    /// Has it follow on to another view of the same nodes and Services, of which these Services changed.
    pub(super) fn follow(&mut self, view: &ClusterView, services: &[u32]) {
        // Who lost a Service, and who has it.
        let mut touched: BTreeMap<NodeIx, Vec<u32>> = BTreeMap::new();
        for &s in services {
            let new = view.services.as_ref().and_then(|services| services.get(s as usize));
            let (Some(service), Some(new)) = (self.services.get_mut(s as usize), new) else { continue };
            for node in nodes_of(service) {
                touched.entry(node).or_default();
            }
            for node in nodes_of(new) {
                touched.entry(node).or_default().push(s);
            }
            *service = Arc::clone(new);
        }
        for (node, mut named) in touched {
            let Some(there) = self.by_node.get_mut(node.position()) else { continue };
            let stay = there.iter().flat_map(|services| services.iter());
            // Those that changed are in order.
            named.extend(stay.filter(|s| services.binary_search(s).is_err()));
            named.sort_unstable();
            *there = shared(named);
        }
    }

    /// What is named at an address.
    pub(super) fn at(&self, at: At) -> BTreeSet<ExemptPort> {
        let (node, _) = at;
        let services = self.by_node.get(node.position()).and_then(Option::as_deref).unwrap_or_default();
        let services = services.iter().filter_map(|s| self.services.get(*s as usize));
        services.flat_map(|service| ports_at(service, at)).collect()
    }
}

fn shared(services: Vec<u32>) -> Option<Arc<[u32]>> {
    (!services.is_empty()).then(|| services.into())
}

/// The nodes of its endpoints.
fn nodes_of(service: &Service) -> BTreeSet<NodeIx> {
    service.endpoints.iter().filter_map(|endpoint| endpoint.node).collect()
}

/// Where its endpoints take traffic at an address of a node.
fn ports_at(service: &Service, at: At) -> impl Iterator<Item = ExemptPort> + '_ {
    let (node, address) = at;
    // They are in the order of their addresses.
    let from = service.endpoints.partition_point(|endpoint| endpoint.address < address);
    let endpoints =
        service.endpoints.iter().skip(from).take_while(move |endpoint| endpoint.address == address);
    endpoints.filter(move |endpoint| endpoint.node == Some(node)).flat_map(move |endpoint| {
        (0..service.ports.len())
            .filter_map(move |port| ExemptPort::of(service, port, endpoint, endpoint.node))
    })
}
