//! Which flows are a node's.

use crate::{
    cluster::{ClusterView, NodeName},
    conntrack::Backends,
    plan::Keep,
};

/// Which flows are the node's, but for those to its ports that are kept: nothing is to happen to these. `None` where the view has no such node.
pub(super) fn backends_of(view: &ClusterView, node: &NodeName, keep: &Keep) -> Option<Backends> {
    let mut backends = Backends::new();
    for backend in &view.node(node)?.backends {
        match backend.port_key() {
            None => backends.add_address(backend.addr()),
            Some(key) => backends.add_port(key),
        }
    }
    for kept in keep.of_node(view.index(node)?) {
        backends.spare(kept.address.into(), kept.port, kept.protocol.number());
    }
    Some(backends)
}
