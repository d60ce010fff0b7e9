//! What pins clients to a flagged node where kube-proxy forwards by nftables or iptables: its affinity, and conntrack's entries. Its rules are never
//! touched, and they go on listing the node's endpoints; so what they pin anew is let go again as long as the flag holds.
use std::{
    fs,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use nodefence_common::PortKey;
use tokio_util::sync::CancellationToken;

use super::{
    core::{Core, chain},
    idle::backends_of,
};
use crate::{
    cluster::{Node, Protocol},
    conntrack::{Backends, Conntrack, Deleted, Protocols},
    plan,
    proxy::{self, Affinity, Mode},
    report::PinnedRow,
};

/// How often what was pinned anew is let go, and by how much longer the pause is than the work: 5 % of a processor at most.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
const PAUSE: u32 = 19;

/// Whether TCP packets in the middle of a flow may begin an entry.
const LOOSE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";

/// Which mode, where there is anything to do: not in observe mode, and not where IPVS forwards or nobody knows what does.
fn mode(core: &Core) -> Option<Mode> {
    let mode = core.proxy().mode.filter(|mode| *mode != Mode::Ipvs)?;
    (core.settings.mode == plan::Mode::Enforce).then_some(mode)
}

/// A flagged node as it is now, and its backends but for what is kept.
fn armed(core: &Core, node: &str) -> Option<(Node, Backends)> {
    let state = core.state();
    if !state.armed.contains_key(node) {
        return None;
    }
    let node = state.view.node(node).cloned()?;
    let backends = backends_of(&node, state.kept.keep());
    Some((node, backends))
}

/// Lets go at once what no RST can: clients that stick to the node's endpoints, then its UDP and SCTP flows. Blocking.
pub(super) fn before_asking(core: &Core, node: &str) {
    let (Some(mode), Some((node, backends))) = (mode(core), armed(core, node)) else { return };
    let mut row = PinnedRow::default();
    match unstick(mode, std::slice::from_ref(&node)) {
        Ok(flushed) => (row.affinity, row.affinity_unknown) = (flushed.emptied, flushed.unknown),
        Err(error) => row.problem = Some(chain(error)),
    }
    match delete(core, &backends, Protocols::Datagrams) {
        Ok(done) => {
            row.datagrams = done.deleted;
            note(&mut row, done);
        }
        Err(error) => row.problem = Some(error),
    }
    tracing::info!(
        node = node.name,
        affinity = row.affinity,
        datagrams = row.datagrams,
        by_filter = row.by_filter,
        "let go what was pinned"
    );
    core.state().pinned.insert(node.name, row);
}

/// Lets go TCP flows, once their clients were asked: the questions and their answers are translated by these entries. Blocking.
pub(super) fn after_asking(core: &Core, node: &str) {
    let (Some(_), Some((node, backends))) = (mode(core), armed(core, node)) else { return };
    let done = match fs::read_to_string(LOOSE) {
        // Without its entry the flow's next packet would be INVALID and dropped by kube-proxy; with it the cut resets it.
        Ok(loose) if loose.trim() == "0" => {
            Err("TCP entries stay: net.netfilter.nf_conntrack_tcp_loose is 0".to_owned())
        }
        _ => delete(core, &backends, Protocols::Tcp),
    };
    let mut state = core.state();
    let row = state.pinned.entry(node.name.clone()).or_default();
    match done {
        Ok(done) => {
            row.tcp = done.deleted;
            note(row, done);
        }
        Err(error) => row.problem = Some(error),
    }
}

/// Lets go what was pinned anew to flagged nodes, until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut pause = AGAIN_EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        let start = Instant::now();
        let core = Arc::clone(&core);
        tokio::task::spawn_blocking(move || again(&core)).await?;
        pause = AGAIN_EVERY.max(start.elapsed() * PAUSE);
    }
}

fn again(core: &Core) {
    let Some(mode) = mode(core) else { return };
    let (nodes, keep): (Vec<Node>, _) = {
        let state = core.state();
        let nodes = state.armed.keys().filter_map(|name| state.view.node(name).cloned());
        (nodes.collect(), Arc::clone(state.kept.keep()))
    };
    if nodes.is_empty() {
        return;
    }
    let mut backends = Backends::new();
    nodes.iter().for_each(|node| backends.extend(backends_of(node, &keep)));
    let flushed = unstick(mode, &nodes).map_err(chain);
    let deleted = delete(core, &backends, Protocols::Datagrams);
    if let Some(error) = flushed.err().or(deleted.err()) {
        tracing::debug!(error, "what was pinned anew was not let go; tried again");
    }
}

/// Takes the clients from the affinity of the nodes' endpoints.
fn unstick(mode: Mode, nodes: &[Node]) -> Result<proxy::Flushed, proxy::Error> {
    let (mut addresses, mut ports) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for backend in nodes.iter().flat_map(|node| &node.backends) {
        match backend.port_key() {
            None => drop(addresses.insert(backend.address)),
            Some(key) => drop(ports.insert(key)),
        }
    }
    let ours = |protocol: Protocol, socket: SocketAddr| {
        let key = PortKey::endpoint(socket.ip().into(), socket.port(), protocol.number());
        addresses.contains(&socket.ip()) || ports.contains(&key)
    };
    proxy::flush(mode, &ours, &Affinity::default())
}

fn delete(core: &Core, backends: &Backends, which: Protocols) -> Result<Deleted, String> {
    let by_filter = core.findings().by_filter();
    Conntrack::open()
        .and_then(|mut conntrack| conntrack.delete_backends(backends, which, by_filter))
        .map_err(chain)
}

fn note(row: &mut PinnedRow, done: Deleted) {
    row.by_filter += done.filtered;
    row.refused += done.refused;
    if done.incomplete {
        row.problem = Some("conntrack changed too fast to be listed whole; entries may be left".to_owned());
    }
}
