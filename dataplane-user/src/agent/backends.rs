//! Which flows are a node's.

use crate::{
    cluster::{Backends, ClusterView, NodeName},
    plan::Keep,
};

/// Adds a node's backends, but for its exempt ports: nothing is to happen to flows there. False where the view has no such node.
pub(super) fn add_backends<T: Clone>(
    to: &mut Backends<T>,
    view: &ClusterView,
    name: &NodeName,
    keep: &Keep,
    owner: T,
) -> bool {
    let (Some(node), Some(index)) = (view.node(name), view.index(name)) else { return false };
    node.backends.iter().for_each(|backend| to.add(backend, owner.clone()));
    for kept in keep.of_node(index) {
        to.exempt(kept.address.into(), kept.port, kept.protocol.number());
    }
    true
}
