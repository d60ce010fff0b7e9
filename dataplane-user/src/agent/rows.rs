//! The agent's state as the rows that the CLI prints.

use std::{collections::HashSet, net::IpAddr, time::Duration};

use jiff::Timestamp;
use nodefence_common::{Action, Counter};

use super::{chain::chain, core::Core, coverage::Coverage, failures::not_found, file_flags, world::World};
use crate::{
    cluster::{Backend, Node, NodeName, Protocol, Scope},
    conntrack::{Conntrack, Family, Flow, blind},
    dataplane::probe::Findings,
    flags::{Clocks, Flag, Origin, monotonic_ns},
    proxy::Judgement,
    report::{
        BackendRow, ClusterRow, CounterRow, DataplaneRow, Failure, FlagReport, FlagRow, FlowRow, Flows,
        NodeRow, Status, UnflagReport,
    },
};

/// How many uncovered backends `status` names.
const EXAMPLES: usize = 10;

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Refuse => "refuse",
        Action::Drop => "drop",
        Action::Observe => "observe",
        Action::Ignore => "ignore",
    }
}

/// For people and programs alike: nobody wants a flag's nanoseconds.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn flag_row(flag: &Flag, now: Clocks) -> FlagRow {
    FlagRow {
        origin: flag.origin,
        reason: flag.reason.clone(),
        since: whole_seconds(flag.since),
        remaining_seconds: flag.remaining(now).map(|left| left.as_secs()),
        until: flag.remaining(now).and_then(|left| now.wall.checked_add(left).ok()).map(whole_seconds),
    }
}

fn node_row(core: &Core, world: &World, node: &Node, now: Clocks) -> NodeRow {
    let slot = world.slots.get(&node.name);
    let flag = world.flags.get(&node.name, now);
    let action = match flag {
        None => "pass",
        Some(_) => action_name(core.settings.policy(&core.own_node).action()),
    };
    NodeRow {
        name: node.name.to_string(),
        address: node.address,
        zone: node.zone.clone(),
        index: slot.map_or(0, |slot| slot.index),
        generation: slot.map_or(0, |slot| slot.generation),
        backends: node.backends.len(),
        own: node.name == core.own_node,
        action: action.to_owned(),
        kept: world.view.index(&node.name).map_or(0, |index| world.exempt.of_node(index).count()),
        flag: flag.map(|flag| flag_row(flag, now)),
    }
}

/// All nodes.
pub(super) fn nodes(core: &Core) -> Vec<NodeRow> {
    let world = core.world();
    let now = Clocks::now();
    world.view.nodes.iter().map(|node| node_row(core, &world, node, now)).collect()
}

fn backend_row(
    coverage: &Coverage,
    own_node: &str,
    node: &Node,
    backend: &Backend,
    flagged: bool,
) -> BackendRow {
    let (port, protocol) = match backend.scope {
        Scope::Address => (None, None),
        Scope::Port(port, protocol) => (Some(port), Some(protocol)),
    };
    let covered = leaves(own_node, node, backend, flagged).then(|| coverage.of(backend.address));
    let (interface, uncovered) = match covered {
        None => (None, None),
        Some(Ok(way)) => (Some(coverage.name(way.attached)), None),
        Some(Err(why)) => (None, Some(why)),
    };
    BackendRow {
        address: backend.address,
        port,
        protocol,
        node: node.name.to_string(),
        flagged,
        interface,
        uncovered,
    }
}

/// Whether packets to a backend leave by a device that is to be attached. To the own node's pods they do so by the pods' own,
/// while it bears a flag; those in its host network share its addresses: what goes to them leaves by no device.
fn leaves(own_node: &str, node: &Node, backend: &Backend, flagged: bool) -> bool {
    node.name != own_node || flagged && backend.scope == Scope::Address
}

/// Who bears a flag now, by name.
fn flagged(world: &World) -> HashSet<&NodeName> {
    world.flags.iter(Clocks::now()).map(|(name, _)| name).collect()
}

/// All backends.
pub(super) fn backends(core: &Core) -> Vec<BackendRow> {
    let world = core.world();
    let bearers = flagged(&world);
    let mut rows = Vec::with_capacity(world.view.backends());
    for node in &world.view.nodes {
        let flagged = bearers.contains(&node.name);
        rows.extend(
            node.backends.iter().map(|b| backend_row(&world.coverage, &core.own_node, node, b, flagged)),
        );
    }
    rows
}

/// How many backends no attached device covers, and the first few of them.
pub(super) fn uncovered(core: &Core) -> (usize, Vec<BackendRow>) {
    let world = core.world();
    let bearers = flagged(&world);
    let (mut count, mut examples) = (0, Vec::new());
    for node in &world.view.nodes {
        let flagged = bearers.contains(&node.name);
        let leaving = node.backends.iter().filter(|backend| leaves(&core.own_node, node, backend, flagged));
        for backend in leaving.filter(|backend| world.coverage.of(backend.address).is_err()) {
            count += 1;
            if examples.len() < EXAMPLES {
                examples.push(backend_row(&world.coverage, &core.own_node, node, backend, flagged));
            }
        }
    }
    (count, examples)
}

/// What a `flag` did to that node; `None` where it does not exist any more.
pub(super) fn flag_report(
    core: &Core,
    name: &str,
    lasts: Option<Duration>,
    replaced: Option<&Flag>,
    named: usize,
) -> Option<FlagReport> {
    let world = core.world();
    let now = Clocks::now();
    let node = world.view.node(name)?;
    let row = node_row(core, &world, node, now);
    let mut warnings = Vec::new();
    let mut uncovered: Vec<String> = node
        .backends
        .iter()
        .filter(|backend| leaves(&core.own_node, node, backend, true))
        .filter_map(|b| world.coverage.of(b.address).err().map(|why| format!("{b} ({why})")))
        .collect();
    if !uncovered.is_empty() {
        let message = format!(
            "no attached device covers {} of its {} backends: traffic to them is not cut here",
            uncovered.len(),
            node.backends.len()
        );
        warnings.push(message);
    }
    if row.kept != 0 {
        warnings.push(format!(
            "{} of its ports are kept: a Service has nothing else (see `nodefence status`)",
            row.kept
        ));
    }
    if row.action == "observe" {
        warnings.push("observe mode: nothing is cut, only counted".to_owned());
    }
    if node.backends.is_empty() {
        warnings.push("the cluster file gives it no backends: there is nothing to cut".to_owned());
    }
    let uncovered_count = uncovered.len();
    uncovered.truncate(named);
    Some(FlagReport {
        node: row.name,
        index: row.index,
        action: row.action,
        for_seconds: lasts.map(|lasts| lasts.as_secs()),
        backends: row.backends,
        uncovered_count,
        uncovered,
        replaced: replaced.map(|flag| flag_row(flag, now)),
        flip_micros: 0,
        received_ns: 0,
        asking: false,
        asked: None,
        warnings,
    })
}

/// What an `unflag` did.
pub(super) fn unflag_report(
    core: &Core,
    node: String,
    was_flagged: bool,
    mut warnings: Vec<String>,
) -> UnflagReport {
    let now = Clocks::now();
    let still = core.world().flag_of(&node, now).map(|flag| flag_row(flag, now));
    match still.as_ref().map(|flag| flag.origin) {
        Some(Origin::ClusterFile) => {
            warnings.push("the cluster file flags it too: remove it there".to_owned());
        }
        Some(Origin::Cli) => warnings.push("another command has flagged it meanwhile".to_owned()),
        None => {}
    }
    UnflagReport { node, was_flagged, still, warnings }
}

/// The flows to backends, of one node or of all.
pub(super) fn flows(core: &Core, only: Option<&str>) -> Result<Flows, Failure> {
    let world = core.world();
    let view = &world.view;
    if let Some(name) = only.filter(|name| view.node(name).is_none()) {
        return Err(not_found(name));
    }
    let mut owners = std::collections::HashMap::new();
    for node in view.nodes.iter().filter(|node| only.is_none_or(|name| node.name == name)) {
        for backend in &node.backends {
            owners
                .insert((backend.addr(), backend.port_key().map(|key| (key.port, key.protocol))), &node.name);
        }
    }
    let owner = |flow: &Flow| {
        let reply = &flow.reply;
        owners
            .get(&(reply.src, None))
            .or_else(|| owners.get(&(reply.src, Some((reply.src_port, reply.protocol)))))
    };
    let mut conntrack = Conntrack::open().map_err(failed)?;
    let mut flows = Vec::new();
    let mut notes = Vec::new();
    for family in [Family::V4, Family::V6] {
        let dump = conntrack.dump(family, |flow| owner(flow).is_some()).map_err(failed)?;
        if dump.incomplete {
            notes.push("conntrack changed too fast to be listed whole; flows may be missing".to_owned());
        }
        flows.extend(dump.flows.iter().filter_map(|flow| Some(flow_row(flow, owner(flow)?))));
    }
    flows.sort_by(|a, b| (&a.node, a.backend, a.client).cmp(&(&b.node, b.backend, b.client)));
    Ok(Flows { flows, notes })
}

fn flow_row(flow: &Flow, node: &str) -> FlowRow {
    let end = |addr: nodefence_common::Addr, port| std::net::SocketAddr::new(IpAddr::from(addr), port);
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

/// All counters.
pub(super) fn counters(core: &Core) -> Result<Vec<CounterRow>, Failure> {
    let row = |name: &str, help: &str, counter: Counter| CounterRow {
        reason: name.to_owned(),
        packets: counter.packets,
        bytes: counter.bytes,
        help: help.trim().to_owned(),
    };
    let counters = core.dataplane().counters().map_err(Failure::failed)?;
    let kernel = counters.into_iter().map(|(reason, counter)| row(reason.name(), reason.help(), counter));
    let unanswered = core.injector.unanswered();
    let own = unanswered.into_iter().map(|(why, counter)| row(why.name(), why.help(), counter));
    let rescued = core.rescue.tally.get().map(|(fate, counter)| row(fate.name(), fate.help(), counter));
    Ok(kernel.chain(own).chain(rescued).collect())
}

/// Everything else.
pub(super) fn status(core: &Core) -> Status {
    let (uncovered, uncovered_examples) = uncovered(core);
    let cannot_ask = cannot_ask();
    let world = core.world();
    let findings = Findings::clone(&world.findings);
    let now = Clocks::now();
    let bearers = world.flags.iter(now).filter_map(|(name, _)| world.view.node(name));
    let flagged = bearers.map(|node| node_row(core, &world, node, now)).collect();
    let unknown = world.flags.iter(now).filter(|(name, _)| world.view.node(name).is_none());
    let flagged_unknown = unknown.map(|(name, flag)| (name.clone(), flag_row(flag, now))).collect();
    let backends = world.view.backends();
    let kept_examples = super::kept::rows(&world.view, &world.exempt).take(EXAMPLES).collect();
    // Each has a lock of its own: none is taken under another.
    let rescue = core.rescue.row();
    let ipvs = core.takeout.row();
    let state = core.state();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id().cast_signed(),
        started: whole_seconds(core.started),
        node: core.own_node.to_string(),
        mode: core.settings.mode,
        answer: core.settings.answer,
        cluster: ClusterRow {
            file: core.settings.cluster_file.display().to_string(),
            loaded: whole_seconds(world.loaded),
            nodes: world.view.nodes.len(),
            backends,
            services: world.view.services.as_ref().map(Vec::len),
            endpoints: world.view.endpoints(),
            error: state.file_error.clone(),
            flags: file_flags::dangers(&world.view, &core.own_node, now.wall),
            watch: state.watch_error.clone(),
        },
        flagged,
        flags_problem: state.flags_problem.clone(),
        flagged_unknown,
        kept: world.exempt.ports.len(),
        kept_examples,
        rescue,
        dataplane: DataplaneRow {
            pin_dir: core.settings.options.pin_dir.display().to_string(),
            max_backends: core.settings.options.max_backends,
            left_out: state.last_write.left_out,
            left_out_ports: state.last_write.left_out_ports,
            left_out_first: state.last_write.left_out_first.clone(),
            error: state.write_error.clone(),
            renewed_seconds_ago: Duration::from_nanos(monotonic_ns().saturating_sub(state.renewed))
                .as_secs_f64(),
            renew_error: state.renew_error(),
        },
        interfaces: state.interfaces.clone(),
        uncovered,
        uncovered_examples,
        probe_text: findings.to_string(),
        probe: findings,
        cannot_ask,
        asked: state.asked.clone(),
        proxy: Judgement::clone(&world.proxy),
        pinned: state.pinned.clone(),
        neighbours: state.neighbours.clone(),
        ipvs,
    }
}

/// Which flows conntrack does not list here, so that their clients cannot be asked: they are cut when they next send.
fn cannot_ask() -> Vec<String> {
    let mut flows = vec!["flows that bypass conntrack (NOTRACK)".to_owned()];
    flows.extend(blind().into_iter().map(|reason| reason.to_string()));
    flows
}
