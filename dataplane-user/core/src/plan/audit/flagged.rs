use crate::{
    cluster::{Backends, ClusterView, NodeSet},
    plan::Keep,
};

/// The backends of flagged nodes, each with its node's name, but for what is kept.
pub(super) fn flagged_backends<'a>(
    view: &'a ClusterView,
    flagged: &NodeSet,
    keep: &Keep,
) -> Backends<&'a str> {
    let mut all = Backends::new();
    for node in flagged.iter().filter_map(|node| view.at(node)) {
        node.backends.iter().for_each(|backend| all.add(backend, node.name.as_str()));
    }
    for kept in keep.ports.keys() {
        all.exempt(kept.address.into(), kept.port, kept.protocol.number());
    }
    all
}
