use crate::{
    cluster::{Backends, ClusterView, NodeSet},
    plan::Exemptions,
};

/// The backends of flagged nodes that are cut, each with its node's name.
pub(super) fn flagged_backends<'a>(
    view: &'a ClusterView,
    flagged: &NodeSet,
    exemptions: &Exemptions,
) -> Backends<&'a str> {
    let mut all = Backends::new();
    for (at, node) in flagged.iter().filter_map(|at| Some((at, view.at(at)?))) {
        exemptions.cut(at, node).for_each(|backend| all.add(&backend, node.name.as_str()));
    }
    all
}
