//! The flows that conntrack knows to backends, as the rows that the CLI prints.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use nodefence_common::Addr;

use super::{chain::chain, reader::Reader, refusals::not_found, world::World};
use crate::{
    cluster::{Backends, Protocol},
    conntrack::{Flow, of_backends},
    report::{Failure, FlowRow, Flows},
};

/// The flows to backends, of one node or of all.
pub(super) fn flows(world: &World, reader: &Reader, only: Option<&str>) -> Result<Flows, Failure> {
    let view = &world.view;
    if let Some(name) = only.filter(|name| view.node(name).is_none()) {
        return Err(not_found(name, view.source));
    }
    let mut backends = Backends::new();
    for node in view.nodes.iter().filter(|node| only.is_none_or(|name| node.name == name)) {
        node.backends.iter().for_each(|backend| backends.add(backend, node.name.clone()));
    }
    let backends = Arc::new(backends);
    let mut flows = Vec::new();
    let mut notes = Vec::new();
    for dump in reader.list_while(of_backends(&backends, None), || {}).map_err(failed)? {
        if dump.incomplete {
            notes.push("conntrack changed too fast to be listed whole; flows may be missing".to_owned());
        }
        flows.extend(dump.flows.iter().filter_map(|flow| Some(flow_row(flow, backends.of_flow(flow)?))));
    }
    flows.sort_by(|a, b| (&a.node, a.backend, a.client).cmp(&(&b.node, b.backend, b.client)));
    Ok(Flows { flows, notes })
}

fn flow_row(flow: &Flow, node: &str) -> FlowRow {
    let end = |addr: Addr, port| SocketAddr::new(IpAddr::from(addr), port);
    FlowRow {
        protocol: Protocol::of(flow.orig.protocol)
            .map_or_else(|| flow.orig.protocol.to_string(), |protocol| protocol.to_string()),
        client: end(flow.orig.src, flow.orig.src_port),
        service: end(flow.orig.dst, flow.orig.dst_port),
        backend: flow.backend(),
        node: node.to_owned(),
        state: flow.tcp.map(|state| format!("{state:?}")),
        zone: flow.zone.map_or(0, |zone| zone.id()),
        timeout_seconds: flow.timeout,
    }
}

fn failed(error: impl Into<anyhow::Error>) -> Failure {
    Failure::failed(chain(error))
}
