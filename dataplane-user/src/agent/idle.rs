use std::sync::Arc;

use nodefence_common::Addr;
use tokio_util::sync::CancellationToken;

use super::{core::Core, coverage::Coverage};
use crate::{
    cluster::Node,
    conntrack::{Backends, Conntrack},
    dataplane::sweep::{self, Entry, Report, Surroundings},
    plan::{Answer, Mode},
    report::AskRow,
};

/// Asks the idle clients of nodes that were flagged otherwise than by a request (the cluster file, a flag adopted from an
/// agent that ended), until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = core.flagged.notified() => {}
        }
        let fresh = std::mem::take(&mut core.state().fresh);
        for node in fresh {
            let core = Arc::clone(&core);
            tokio::task::spawn_blocking(move || ask(&core, &node));
        }
    }
}

/// Why clients of a node are not asked at all.
pub(super) fn pointless(core: &Core, node: &str) -> Option<&'static str> {
    match (core.settings.mode, core.settings.answer) {
        _ if node == core.own_node => Some("verdicts on the own node are not enforced"),
        (Mode::Observe, _) => Some("nothing is cut in observe mode"),
        (_, Answer::Drop) => {
            Some("with --answer drop nobody is told; idle clients wait for their own timeouts")
        }
        (Mode::Enforce, Answer::Refuse) => None,
    }
}

/// Asks all clients of a node's backends and keeps the outcome for `status`. Blocking, a second or so.
pub(super) fn ask(core: &Core, node: &str) -> Option<AskRow> {
    if pointless(core, node).is_some() {
        return None;
    }
    let (view, coverage) = {
        let state = core.state();
        (Arc::clone(&state.view), Arc::clone(&state.coverage))
    };
    let node = view.node(node)?;
    let mut backends = Backends::new();
    for backend in &node.backends {
        match backend.port_key() {
            None => backends.add_address(backend.addr()),
            Some(key) => backends.add_port(key),
        }
    }
    let mut ground = Ground { core, node, coverage, failed: None };
    let outcome = match Conntrack::open() {
        Ok(mut conntrack) => sweep::sweep(&mut conntrack, &backends, &core.findings().manner(), &mut ground),
        Err(error) => Err(error),
    };
    let mut row = match outcome {
        Ok(report) => row(report),
        Err(error) => {
            let why = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            let problem = why.map(ToString::to_string).collect::<Vec<_>>().join(": ");
            AskRow { problem: Some(problem), ..AskRow::default() }
        }
    };
    row.problem = row.problem.or(ground.failed);
    match &row.problem {
        None => tracing::info!(
            node = node.name,
            asked = row.asked,
            closed = row.closed,
            seconds = row.seconds,
            "asked idle clients"
        ),
        Some(problem) => tracing::warn!(node = node.name, problem, asked = row.asked, "asked idle clients"),
    }
    core.state().asked.insert(node.name.clone(), row.clone());
    Some(row)
}

/// The sweep's view of the agent.
struct Ground<'a> {
    core: &'a Core,
    node: &'a Node,
    coverage: Arc<Coverage>,
    failed: Option<String>,
}

impl Surroundings for Ground<'_> {
    fn entry(&mut self, backend: Addr) -> Option<Entry> {
        // As the backend's own packets come in: by the VLAN device, also where the one below it is attached.
        let ifindex = self.coverage.of(backend.into()).ok()?.device;
        Some(Entry { ifindex, mac: self.coverage.mac(ifindex) })
    }

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> usize {
        let (sent, error) = sweep::inject(&self.core.injector, frames);
        self.failed = self.failed.take().or(error.map(|error| error.to_string()));
        sent
    }

    fn go_on(&self) -> bool {
        self.core.state().armed.contains_key(&self.node.name)
    }
}

fn row(report: Report) -> AskRow {
    let problem = match (report.stopped, report.incomplete) {
        (true, _) => Some("ended early: the flag was taken back".to_owned()),
        (_, true) => Some("conntrack changed too fast to be listed whole; flows may be missing".to_owned()),
        _ => None,
    };
    AskRow {
        listed: report.listed,
        asked: report.asked,
        closed: report.closed,
        skipped_closed: report.skipped.closed,
        skipped_not_tcp: report.skipped.not_tcp,
        skipped_opening_or_ended: report.skipped.opening + report.skipped.ended,
        unreachable: report.skipped.no_device + report.skipped.not_injected,
        liberal: report.liberal,
        zones: report.zones,
        seconds: report.seconds,
        problem,
    }
}
