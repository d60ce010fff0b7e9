//! Which Services name a node by their endpoints, or have an endpoint without a node at its address.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::names::NameId;

/// By the node's name, the names of the Services. Sorted, each once.
#[derive(Debug, Default)]
pub(super) struct NamedBy(HashMap<NameId, Vec<NameId>, RandomState>);

impl NamedBy {
    /// Takes note that an endpoint of the Service names the node.
    pub(super) fn add(&mut self, node: NameId, service: NameId) {
        let services = self.0.entry(node).or_default();
        if let Err(at) = services.binary_search(&service) {
            services.insert(at, service);
        }
    }

    /// Takes note that no endpoint of the Service names the node.
    pub(super) fn remove(&mut self, node: NameId, service: NameId) {
        let Some(services) = self.0.get_mut(&node) else { return };
        if let Ok(at) = services.binary_search(&service) {
            services.remove(at);
        }
        if services.is_empty() {
            self.0.remove(&node);
        }
    }

    /// The Services that name the node.
    pub(super) fn of(&self, node: NameId) -> &[NameId] {
        self.0.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The Services that name any of these nodes.
    pub(super) fn of_any(&self, nodes: impl Iterator<Item = NameId>) -> Vec<NameId> {
        let mut all: Vec<NameId> = nodes.flat_map(|node| self.of(node)).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
