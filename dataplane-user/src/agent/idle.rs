//! The rounds of asking idle clients.

use std::{net::IpAddr, sync::Arc};

use nodefence_common::Addr;
use tokio_util::sync::CancellationToken;

use super::{
    backends::backends_of,
    chain::chain,
    core::Core,
    coverage::Coverage,
    follow_up::{Outcome, Round},
    pinned,
};
use crate::{
    cluster::Node,
    conntrack::Conntrack,
    dataplane::{
        route,
        sweep::{self, Entry, Report, Surroundings},
    },
    flags::monotonic_ns,
    plan::{Answer, Mode},
    report::AskRow,
};

/// Begins a round as soon as there is a turn for it, and tells who asked for it what came of it; see [`ask`].
async fn ask_in_turn(core: Arc<Core>, round: Round) {
    let Round { node, requests } = round;
    let turns = if requests.is_empty() { &core.turns.others } else { &core.turns.requests };
    // Nobody closes it.
    let Ok(turn) = Arc::clone(turns).acquire_owned().await else { return };
    let crew = core.crew.clone();
    let asking = crew.blocking("follow-up", move || {
        if node == core.own_node {
            // The devices of its pods are attached only while it bears a flag, which the cluster file may just have given it.
            core.bells.looks.look();
        }
        pinned::before_asking(&core, &node);
        let row = ask(&core, &node).and_then(|row| ask_where_reached_late(&core, &node, row));
        pinned::after_asking(&core, &node);
        drop(turn);
        for request in requests {
            // Whoever asked may have gone.
            let _gone = request.send(row.clone());
        }
    });
    // Where it panicked the agent ends.
    let _told = asking.await;
}

/// Asks again where a device was missing that is there now: behind this the entries are deleted, and whoever was not asked hears nothing any more.
fn ask_where_reached_late(core: &Core, node: &str, row: AskRow) -> Outcome {
    if row.unreachable == 0 {
        return Some(row);
    }
    let before = Arc::clone(&core.world().coverage);
    core.bells.looks.look();
    let world = core.world();
    let more = world.view.node(node).is_some_and(|node| world.coverage.reaches_more_of(node, &before));
    if more { ask(core, node) } else { Some(row) }
}

/// Asks the idle clients of nodes that are cut from now on (by a request, the cluster file, a flag adopted from an agent that ended), or that the cut reaches better
/// than before, until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = core.bells.flagged.notified() => {}
        }
        let world = core.world();
        if world.held.number > core.beat.done() {
            // It is about to be in the maps, and rung again then.
            continue;
        }
        for round in core.follow_up.due(&world) {
            core.crew.errand("follow-up", ask_in_turn(Arc::clone(&core), round));
        }
    }
}

/// Why clients of a node are not asked at all.
pub(super) fn pointless(core: &Core) -> Option<&'static str> {
    match (core.settings.mode, core.settings.answer) {
        (Mode::Observe, _) => Some("nothing is cut in observe mode"),
        (_, Answer::Drop) => {
            Some("with --answer drop nobody is told; idle clients wait for their own timeouts")
        }
        (Mode::Enforce, Answer::Refuse) => None,
    }
}

/// Asks all clients of a node's backends and keeps the outcome for `status`. Blocking, a second or so.
fn ask(core: &Core, node: &str) -> Outcome {
    if pointless(core).is_some() {
        return None;
    }
    let begun = monotonic_ns();
    let world = core.world();
    // The flag may be gone by the time of its turn.
    if !world.enforces(node) {
        return None;
    }
    let node = world.view.node(node)?;
    let backends = backends_of(node, &world.keep());
    let coverage = Arc::clone(&world.coverage);
    let mut ground = Ground { core, node, coverage, lookup: None, failed: None };
    let outcome = match Conntrack::open() {
        Ok(mut conntrack) => sweep::sweep(&mut conntrack, &backends, &world.findings.manner(), &mut ground),
        Err(error) => Err(error),
    };
    let mut row = match outcome {
        Ok(report) => row(report),
        Err(error) => AskRow { problem: Some(chain(error)), ..AskRow::default() },
    };
    row.problem = row.problem.or(ground.failed);
    let name = node.name.as_str();
    match &row.problem {
        None => tracing::info!(
            node = name,
            asked = row.asked,
            closed = row.closed,
            seconds = row.seconds,
            "asked idle clients"
        ),
        Some(problem) => tracing::warn!(node = name, problem, asked = row.asked, "asked idle clients"),
    }
    let coverage = Arc::clone(&core.world().coverage);
    // A device may have been attached while this went on.
    if coverage.reaches_more_of(node, &ground.coverage) {
        core.follow_up.reached([node.name.clone()]);
        core.bells.flagged.notify_one();
    }
    core.follow_up.note_asked(&node.name, row.clone());
    core.takeout().asked(&node.name, begun);
    Some(row)
}

/// The sweep's view of the agent.
struct Ground<'a> {
    core: &'a Core,
    node: &'a Node,
    coverage: Arc<Coverage>,
    lookup: Option<route::Lookup>,
    failed: Option<String>,
}

impl Ground<'_> {
    /// The device by which packets to `backend` leave, where the cut covers it: as it was last looked at, or as it is now where
    /// that gives none (a backend that was just added, a route that just came).
    fn device(&mut self, backend: IpAddr) -> Option<u32> {
        if let Ok(way) = self.coverage.of(backend) {
            return Some(way.device);
        }
        if self.lookup.is_none() {
            self.lookup = route::Lookup::open().ok();
        }
        let route = self.lookup.as_mut()?.route(backend).ok()??;
        Some(self.coverage.way(&route.into()).ok()?.device)
    }
}

impl Surroundings for Ground<'_> {
    fn entry(&mut self, backend: Addr) -> Option<Entry> {
        // As the backend's own packets come in: by the VLAN device, also where the one below it is attached.
        let ifindex = self.device(backend.into())?;
        Some(Entry { ifindex, mac: self.coverage.mac(ifindex) })
    }

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> usize {
        let (sent, error) = sweep::inject(&self.core.injector, frames);
        self.failed = self.failed.take().or(error.map(|error| error.to_string()));
        sent
    }

    fn go_on(&self) -> bool {
        self.core.world().enforces(&self.node.name)
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
