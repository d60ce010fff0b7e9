//! Endpoints and backends that cannot be told from their node's own address: as rows, and as a line of the log.

use std::net::IpAddr;

use crate::{
    cluster::{ClusterView, NodeName},
    report::LeftOutRow,
};

/// All endpoints and backends that are left out, by node.
pub(super) fn left_out_rows(view: &ClusterView) -> impl Iterator<Item = LeftOutRow> {
    view.left_out().map(|(node, address)| LeftOutRow {
        node: node.name.to_string(),
        address,
        why: format!("it may be {}'s own address: the node names no {} address", node.name, version(address)),
    })
}

/// Logs endpoints that are left out, where other nodes have such endpoints than before.
pub(super) fn tell(before: Option<&ClusterView>, view: &ClusterView) {
    fn names(view: &ClusterView) -> impl Iterator<Item = &NodeName> {
        view.nodes.iter().filter(|node| !node.left_out.is_empty()).map(|node| &node.name)
    }
    let Some(first) = names(view).next() else { return };
    if before.is_some_and(|before| names(before).eq(names(view))) {
        return;
    }
    tracing::warn!(
        event = "endpoints-left-out",
        nodes = names(view).count(),
        endpoints = view.left_out().count(),
        first = first.as_str(),
        "endpoints are left out and not cut: their nodes name no address of that IP version, and each may be its node's own (see `nodefence status`)"
    );
}

fn version(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
