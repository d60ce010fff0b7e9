//! Ports of nodes' backends that Services name. At an exempt address, a named port that is not exempt itself is cut all the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    cluster::{ClusterView, NodeIx, Service},
    list::List,
    plan::{At, ExemptPort},
};

/// The ports that Services name. Only a node's Services are stored, which the view has anyway. Their ports are not: each endpoint has at least one.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    services: List<Arc<Service>>,
    /// By the view's position of a node, the indices of the Services that name something on it. Sorted, each once.
    by_node: List<Option<Arc<[u32]>>>,
}

impl Named {
    /// The named ports of a whole view.
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

    /// Follows to another view of the same nodes and Services, of which these Services changed.
    pub(super) fn follow(&mut self, view: &ClusterView, services: &[u32]) {
        // Nodes that had one of these Services, or have it now.
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
            // `services` is sorted.
            named.extend(stay.filter(|service| services.binary_search(service).is_err()));
            named.sort_unstable();
            *there = shared(named);
        }
    }

    /// The ports that are named at an address.
    pub(super) fn at(&self, at: At) -> BTreeSet<ExemptPort> {
        let (node, _) = at;
        let services = self.by_node.get(node.position()).and_then(Option::as_deref).unwrap_or_default();
        let services = services.iter().filter_map(|service| self.services.get(*service as usize));
        services.flat_map(|service| ports_at(service, at)).collect()
    }
}

fn shared(services: Vec<u32>) -> Option<Arc<[u32]>> {
    (!services.is_empty()).then(|| services.into())
}

/// The nodes of a Service's endpoints.
fn nodes_of(service: &Service) -> BTreeSet<NodeIx> {
    service.endpoints.iter().filter_map(|endpoint| endpoint.node).collect()
}

/// The ports where a Service's endpoints take traffic at an address of a node.
fn ports_at(service: &Service, at: At) -> impl Iterator<Item = ExemptPort> + '_ {
    let (node, address) = at;
    // Endpoints are in the order of their addresses.
    let from = service.endpoints.partition_point(|endpoint| endpoint.address < address);
    let endpoints =
        service.endpoints.iter().skip(from).take_while(move |endpoint| endpoint.address == address);
    endpoints.filter(move |endpoint| endpoint.node == Some(node)).flat_map(move |endpoint| {
        (0..service.ports.len())
            .filter_map(move |port| ExemptPort::of(service, port, endpoint, endpoint.node))
    })
}
