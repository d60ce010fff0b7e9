//! Which flows are a node's.

use crate::{cluster::Node, conntrack::Backends, plan::Keep};

/// Which flows are the node's, but for those to ports that are kept: nothing is to happen to these.
pub(super) fn backends_of(node: &Node, keep: &Keep) -> Backends {
    let mut backends = Backends::new();
    for backend in &node.backends {
        match backend.port_key() {
            None => backends.add_address(backend.addr()),
            Some(key) => backends.add_port(key),
        }
    }
    for kept in keep.ports.keys() {
        backends.spare(kept.address.into(), kept.port, kept.protocol.number());
    }
    backends
}
