//! Which backends of a node are cut.

use crate::{
    cluster::{Backends, ClusterView, NodeName},
    plan::Exemptions,
};

/// Adds the backends of a node that are cut: nothing is to happen to flows that pass. False where the view has no such node.
pub(super) fn add_backends<T: Clone>(
    to: &mut Backends<T>,
    view: &ClusterView,
    name: &NodeName,
    exemptions: &Exemptions,
    owner: T,
) -> bool {
    let (Some(node), Some(index)) = (view.node(name), view.index(name)) else { return false };
    exemptions.cut(index, node).for_each(|backend| to.add(&backend, owner.clone()));
    true
}
