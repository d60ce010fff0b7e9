//! The agent's state as the rows that the CLI prints.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use nodefence_common::Action;

use super::{
    beat::Beat,
    bell::Bell,
    claim_rows::{any_holds, automatic_rows, claim_rows, flag_of, share_text, whole_seconds, withheld_rows},
    coverage::Coverage,
    exempt_rows::exempt_rows,
    follow_up::FollowUp,
    left_out::left_out_rows,
    reader::Reader,
    records::danger,
    rescue_state::RescueState,
    settings_rows::settings_row,
    sight::Sight,
    tables::TablesRow,
    told::Rows,
    world::World,
};
use crate::{
    cluster::{Backend, Node, NodeName, Scope},
    conntrack::blind,
    dataplane::{Counters, Injector, probe::Findings},
    enforce::{Now, ShownClaim, Standing},
    flags::{monotonic_ns, now},
    plan::{Exemptions, Mode, Policy},
    proxy::Judgement,
    report::{
        Adjusted, BackendRow, ClaimRow, ClusterRow, CounterRow, DataplaneRow, Failure, FlagRow, NodeAction,
        NodeRow, ReplacementRow, Status,
    },
};

/// The state that all rows show.
pub(super) struct Shown {
    pub(super) sight: Sight,
    pub(super) started: Timestamp,
    pub(super) beat: Arc<Beat>,
    /// The counters of the kernel programs.
    pub(super) counters: Arc<Counters>,
    pub(super) injector: Injector,
    pub(super) rescue: Arc<RescueState>,
    pub(super) drain: Arc<Bell>,
    pub(super) follow_up: Arc<FollowUp>,
    pub(super) reader: Reader,
    pub(super) rows: Rows,
}

impl Shown {
    /// Whether the agent is to cut, by its command line and by commands since.
    pub(super) fn mode_set(&self, world: &World) -> Adjusted<Mode> {
        let changed = world.held.mode_changed.clone();
        Adjusted { started: self.sight.settings.mode, set: world.held.set_mode, changed }
    }
}

/// How many of each kind `status` names, where there may be many.
const EXAMPLES: usize = 10;

/// The action that follows from a node's claims: it is what is done with packets to the node now, or will be in a moment.
fn action(claims: &[ShownClaim], policy: &Policy<'_>, now: Now) -> NodeAction {
    let stands =
        |standing: Standing| claims.iter().any(|shown| shown.standing == standing && !shown.claim.ended(now));
    let mode = match () {
        () if stands(Standing::Enforced) => Mode::Enforce,
        () if stands(Standing::Observed) => Mode::Observe,
        () => return NodeAction::Pass,
    };
    match (Policy { mode, ..*policy }).action() {
        Action::Refuse => NodeAction::Refuse,
        Action::Drop => NodeAction::Drop,
        Action::Observe => NodeAction::Observe,
        Action::Ignore => NodeAction::Pass,
    }
}

/// The state that rows of nodes show, at one moment.
pub(super) struct Moment<'a> {
    sight: &'a Sight,
    world: &'a World,
    pub(super) exemptions: Exemptions,
    pub(super) now: Now,
}

impl<'a> Moment<'a> {
    pub(super) fn of(sight: &'a Sight, world: &'a World) -> Self {
        Self { sight, world, exemptions: world.exemptions(), now: now() }
    }

    pub(super) fn row(&self, node: &Node) -> NodeRow {
        let Self { sight, world, exemptions, now } = self;
        let slot = world.slot(&node.name);
        let claims = world.claims_on(&node.name);
        NodeRow {
            name: node.name.to_string(),
            address: node.addresses.first().copied(),
            addresses: node.addresses.clone(),
            zone: node.zone.as_deref().map(str::to_owned),
            pool: node.pool.as_deref().map(str::to_owned),
            index: slot.map_or(0, |slot| slot.index),
            generation: slot.map_or(0, |slot| slot.generation),
            backends: node.backends.len(),
            own: node.name == sight.own_node,
            action: action(claims, &sight.policy(), *now),
            exempt: world.view.index(&node.name).map_or(0, |index| exemptions.of_node(index).count()),
            flag: flag_of(claims, world.view.source, *now),
            claims: claim_rows(claims, world.view.source, *now),
        }
    }
}

/// All nodes.
pub(super) fn nodes(sight: &Sight) -> Vec<NodeRow> {
    let world = sight.world();
    let moment = Moment::of(sight, &world);
    world.view.nodes.iter().map(|node| moment.row(node)).collect()
}

pub(super) fn backend_row(
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

/// Whether packets to a backend leave by a device that is to be attached. Packets to the own node's pods leave by the pods' own
/// devices, which are attached while the node bears a flag. Pods in the own node's host network share its addresses: packets to
/// them leave by no device.
fn leaves(own_node: &str, node: &Node, backend: &Backend, flagged: bool) -> bool {
    node.name != own_node || flagged && backend.scope == Scope::Address
}

/// The names of the nodes with a claim that holds and is carried out.
fn flagged(world: &World) -> HashSet<&NodeName> {
    let now = now();
    world.held.claims.nodes().filter(|name| world.holds(name, now)).collect()
}

/// All backends.
pub(super) fn backends(sight: &Sight) -> Vec<BackendRow> {
    let world = sight.world();
    let bearers = flagged(&world);
    let mut rows = Vec::with_capacity(world.view.backends());
    for node in &world.view.nodes {
        let flagged = bearers.contains(&node.name);
        let row = |backend| backend_row(&world.coverage, &sight.own_node, node, backend, flagged);
        rows.extend(node.backends.iter().map(row));
    }
    rows
}

/// How many backends attached devices cover. Only backends count to which packets leave by a device.
#[derive(Default)]
pub(super) struct Covered {
    pub(super) covered: usize,
    pub(super) uncovered: usize,
    /// The first few uncovered ones.
    pub(super) examples: Vec<BackendRow>,
}

impl Covered {
    pub(super) fn of(world: &World, own_node: &str) -> Self {
        let bearers = flagged(world);
        let mut found = Self::default();
        for node in &world.view.nodes {
            let flagged = bearers.contains(&node.name);
            for backend in leaving(own_node, node, flagged) {
                if world.coverage.of(backend.address).is_ok() {
                    found.covered += 1;
                    continue;
                }
                found.uncovered += 1;
                if found.examples.len() < EXAMPLES {
                    found.examples.push(backend_row(&world.coverage, own_node, node, backend, flagged));
                }
            }
        }
        found
    }
}

/// The node's backends to which packets leave by a device, but by none that is attached. `flagged`: whether the node is.
pub(super) fn uncovered_of<'a>(
    coverage: &'a Coverage,
    own_node: &'a str,
    node: &'a Node,
    flagged: bool,
) -> impl Iterator<Item = &'a Backend> {
    leaving(own_node, node, flagged).filter(|backend| coverage.of(backend.address).is_err())
}

/// The node's backends to which packets leave by a device.
pub(super) fn leaving<'a>(
    own_node: &'a str,
    node: &'a Node,
    flagged: bool,
) -> impl Iterator<Item = &'a Backend> {
    node.backends.iter().filter(move |backend| leaves(own_node, node, backend, flagged))
}

/// All counters.
pub(super) fn counters(shown: &Shown) -> Result<Vec<CounterRow>, Failure> {
    let counters = shown.counters.read().map_err(Failure::failed)?;
    let kernel =
        counters.into_iter().map(|(reason, counter)| CounterRow::of(reason.name(), reason.help(), counter));
    let unanswered = shown.injector.unanswered();
    let own = unanswered.into_iter().map(|(why, counter)| CounterRow::of(why.name(), why.help(), counter));
    let rescued =
        shown.rescue.tally.get().map(|(fate, counter)| CounterRow::of(fate.name(), fate.help(), counter));
    Ok(kernel.chain(own).chain(rescued).collect())
}

/// All that `status` shows.
pub(super) fn status(shown: &Shown) -> Status {
    let Shown { sight, .. } = shown;
    let cannot_challenge = cannot_challenge();
    let world = sight.world();
    let Covered { covered, uncovered, examples } = Covered::of(&world, &sight.own_node);
    let moment = Moment::of(sight, &world);
    let now = moment.now;
    let findings = Findings::clone(&world.findings);
    let holds = |node: &&Arc<Node>| any_holds(world.claims_on(&node.name), now);
    let (flagged_unknown, claimed_unknown) = unknown(&world, now);
    let (challenged, stale) = shown.follow_up.rows(&world);
    let routes = shown.rows.routes.borrow().clone();
    let writing = shown.rows.writing.problem(monotonic_ns());
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id().cast_signed(),
        started: whole_seconds(shown.started),
        node: sight.own_node.to_string(),
        pod: shown.rows.pod.clone(),
        mode: world.held.mode,
        mode_set: Some(shown.mode_set(&world)),
        settings: settings_row(shown.rows.orders.as_ref(), &world, now),
        replacement: replacement(sight, &world),
        answer: sight.settings.answer,
        auto: world.held.auto,
        auto_limit: share_text(world.held.limit),
        withheld: withheld_rows(&world.held.withheld, now),
        cluster: cluster_row(shown, &world),
        flagged: world.view.nodes.iter().filter(holds).map(|node| moment.row(node)).collect(),
        flags_problem: writing.or_else(|| shown.rows.flags_problem.borrow().clone()),
        flagged_unknown,
        claimed_unknown,
        exempt: moment.exemptions.ports.len(),
        exempt_examples: exempt_rows(&world.view, &moment.exemptions).take(EXAMPLES).collect(),
        would_exempt: world.held.would_exempt,
        rescue: shown.rescue.row(),
        dataplane: dataplane_row(shown, &world),
        interfaces: routes.interfaces,
        routes_problem: routes.error,
        covered: Some(covered),
        uncovered,
        uncovered_examples: examples,
        probe_text: findings.to_string(),
        probe: findings,
        cannot_challenge,
        conntrack: shown.reader.row(),
        challenged,
        proxy: Judgement::clone(&world.proxy),
        stale,
        neighbours: shown.rows.neighbours.borrow().clone(),
        ipvs: shown.drain.row(),
        log_lines_lost: sight.settings.log.lost() + shown.beat.lines_lost(),
        log_level: Some(sight.settings.log.row()),
    }
}

pub(super) fn replacement(sight: &Sight, world: &World) -> Option<ReplacementRow> {
    let mode = world.held.set_mode;
    let force = sight.settings.force;
    world.held.replacement.map(|found| ReplacementRow::new(found, mode, force))
}

/// Flags, and claims that no person made, on nodes that the view lacks.
fn unknown(world: &World, now: Now) -> (BTreeMap<NodeName, FlagRow>, BTreeMap<NodeName, Vec<ClaimRow>>) {
    let mut flags = BTreeMap::new();
    let mut others = BTreeMap::new();
    let claims = world.held.claims.by_name();
    for (name, claims) in claims.into_iter().filter(|(name, _)| world.view.node(name).is_none()) {
        flags.extend(flag_of(claims, world.view.source, now).map(|flag| (name.clone(), flag)));
        let rows = automatic_rows(claims, world.view.source, now);
        if !rows.is_empty() {
            others.insert(name.clone(), rows);
        }
    }
    (flags, others)
}

fn cluster_row(shown: &Shown, world: &World) -> ClusterRow {
    let source = shown.rows.source.borrow().clone();
    ClusterRow {
        source: world.view.source.to_string(),
        file: source.file.map(|file| file.display().to_string()),
        loaded: whole_seconds(world.loaded.wall),
        age_seconds: (now().boot.saturating_sub(world.loaded.boot.max(source.confirmed))
            + source.stored.unwrap_or_default())
        .as_secs(),
        max_age_seconds: shown.sight.settings.max_view_age.map(|age| age.as_secs()),
        is_old: world.held.view_is_old,
        nodes: world.view.nodes.len(),
        backends: world.view.backends(),
        services: world.view.services.as_ref().map(Vec::len),
        endpoints: world.view.endpoints(),
        error: source.error,
        away: source.away,
        is_stored: source.stored.is_some(),
        conflicts: source.conflicts,
        conflict_examples: source.conflict_examples,
        skipped: source.skipped,
        skipped_examples: source.skipped_examples,
        left_out: world.view.left_out().count(),
        left_out_examples: left_out_rows(&world.view).take(EXAMPLES).collect(),
        flags: world.held.dangers.iter().map(|what| danger(what, world.view.source)).collect(),
        watch: source.unwatched,
        view: world.held.view.as_ref().map_or(0, |view| view.epoch.0),
        reading: source.reading,
    }
}

fn dataplane_row(shown: &Shown, world: &World) -> DataplaneRow {
    let TablesRow { report, compared, .. } = shown.rows.tables.borrow().clone();
    let renewed = Duration::from_nanos(monotonic_ns().saturating_sub(shown.beat.renewed()));
    let failed = world.held.failed.iter().next();
    DataplaneRow {
        pin_dir: shown.sight.settings.options.pin_dir.display().to_string(),
        max_backends: shown.sight.settings.options.max_backends,
        left_out: report.left_out,
        left_out_ports: report.left_out_ports,
        left_out_first: report.left_out_first,
        error: world.held.tables_error.as_ref().map(ToString::to_string),
        compared: compared.times,
        compared_last: compared.last.map(whole_seconds),
        differed: compared.differed,
        compare_error: compared.error,
        renewed_seconds_ago: renewed.as_secs_f64(),
        renew_error: failed.map(|(node, error)| format!("{node}: {error}")),
    }
}

/// Which flows conntrack does not list here, so that their clients cannot be challenged: they are cut when they next send.
fn cannot_challenge() -> Vec<String> {
    let mut flows = vec!["flows that bypass conntrack (NOTRACK)".to_owned()];
    flows.extend(blind().into_iter().map(|reason| reason.to_string()));
    flows
}
