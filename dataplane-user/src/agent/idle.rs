//! The rounds in which idle clients are challenged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use nodefence_common::Addr;
use tokio_util::sync::CancellationToken;

use super::{
    backends::add_backends,
    beat::Beat,
    chain::chain,
    coverage::Coverage,
    follow_up::{FollowUp, Progress, Round},
    notes::{ANSWERS_NOBODY, Note, OBSERVES},
    outlets::Bells,
    reader::Reader,
    rounds::{AT_ONCE, Of, Rounds},
    sight::Sight,
    stale::{Begun, StaleFlows},
    threads::Crew,
    world::World,
};
use crate::{
    cluster::{Backends, NodeName},
    conntrack::{self, Conntrack, Dump, Family, WantedFlow, of_backends},
    dataplane::{
        Injector,
        challenge::{self, Entry, Report, Surroundings},
    },
    flags::monotonic_ns,
    plan::{Answer, Mode},
    report::ChallengeRow,
};

/// How long a round waits at most until devices are looked at. The looking thread may stand still, and other nodes' clients wait too.
const LOOK: Duration = Duration::from_secs(5);

/// The parts of the agent that challenging idle clients needs.
pub(super) struct Challenger {
    pub(super) sight: Sight,
    pub(super) beat: Arc<Beat>,
    pub(super) injector: Injector,
    /// Whose clients to challenge, and the outcome.
    pub(super) follow_up: Arc<FollowUp>,
    pub(super) bells: Bells,
    pub(super) stale_flows: StaleFlows,
    pub(super) reader: Reader,
}

/// The outcome by node. A node is missing where there was no point in a challenge.
type Rows = BTreeMap<NodeName, ChallengeRow>;

/// Runs all rounds that wait, again and again, and tells the outcome to those who requested it; see [`challenge`].
async fn work(challenger: Arc<Challenger>, rounds: Arc<Rounds>, of: Of, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    while let Some(waiting) = next(&rounds, of, &stop).await {
        let challenger = Arc::clone(&challenger);
        crew.blocking("follow-up", move || challenger.carry_out(waiting)).await?;
    }
    Ok(())
}

async fn next(rounds: &Rounds, of: Of, stop: &CancellationToken) -> Option<Vec<Round>> {
    tokio::select! {
        () = stop.cancelled() => None,
        waiting = rounds.next(of) => Some(waiting),
    }
}

impl Challenger {
    /// Blocking, for a second or so; with many clients, as long as it takes to challenge them.
    fn carry_out(&self, rounds: Vec<Round>) {
        let begun = monotonic_ns();
        let nodes: BTreeSet<NodeName> = rounds.iter().map(|round| round.node.clone()).collect();
        if nodes.contains(&self.sight.own_node) {
            // The devices of the own node's pods are attached only while it bears a flag, which the source may just have given it.
            self.bells.looks.look(LOOK);
        }
        let begun_to_delete = self.stale_flows.begin(&nodes);
        let to_challenge = ToChallenge::of(self, &nodes);
        let mut wanted = begun_to_delete.as_ref().map(Begun::wanted).unwrap_or_default();
        let of_datagrams = wanted.len();
        wanted.extend(to_challenge.iter().flat_map(ToChallenge::wanted));
        // One listing for both.
        let start = Instant::now();
        let mut datagrams = self.reader.list_while(wanted, || {});
        let clients = match &mut datagrams {
            Ok(listed) => Ok(listed.split_off(of_datagrams)),
            Err(error) => Err(Arc::clone(error)),
        };
        if let Some(begun) = begun_to_delete {
            self.stale_flows.before_challenge(begun, datagrams.as_deref());
        }
        drop(datagrams);
        // Coverage is no newer than what the first challenges go by: a device that is attached meanwhile counts as new.
        let reached = Arc::clone(&self.sight.world().coverage);
        let mut rows = to_challenge
            .map(|to_challenge| to_challenge.challenge(self, &rounds, start, clients))
            .unwrap_or_default();
        rows.extend(challenge_where_reached_late(self, &rows, &reached));
        // The drain deletes the nodes' connections from now on.
        for node in rows.keys() {
            self.bells.drain.challenged(node, begun);
        }
        if nodes.iter().any(|node| rows.get(node).is_none_or(may_have_tcp)) {
            self.stale_flows.after_challenge(&nodes);
        }
        for Round { node, requests } in rounds {
            for request in requests {
                request.send_replace(Progress {
                    row: rows.get(&node).cloned(),
                    challenged: true,
                    ended: true,
                });
            }
        }
    }
}

/// Whether conntrack may have TCP entries of the node. A flow that began after the cut has left no lasting entry.
fn may_have_tcp(row: &ChallengeRow) -> bool {
    row.listed > row.skipped_not_tcp || row.problem.is_some()
}

/// Challenges again where a device was missing that is attached now. The entries are deleted after this, and a client that was not
/// challenged gets no answer any more.
fn challenge_where_reached_late(challenger: &Challenger, rows: &Rows, before: &Coverage) -> Rows {
    let mut late: BTreeSet<NodeName> =
        rows.iter().filter(|(_, row)| row.unreachable > 0).map(|(node, _)| node.clone()).collect();
    if late.is_empty() {
        return Rows::new();
    }
    challenger.bells.looks.look(LOOK);
    let world = challenger.sight.world();
    late.retain(|node| {
        world.view.node(node).is_some_and(|node| world.coverage.reaches_more_of(node, before))
    });
    let start = Instant::now();
    let Some(to_challenge) = ToChallenge::of(challenger, &late) else { return Rows::new() };
    let listed = challenger.reader.list_while(to_challenge.wanted(), || {});
    to_challenge.challenge(challenger, &[], start, listed)
}

/// Challenges the idle clients of nodes that are cut from now on (by a request, the source, a flag adopted from an agent that ended), or
/// that the cut reaches better than before, until the agent ends.
pub(super) async fn follow(challenger: Challenger, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let challenger = Arc::new(challenger);
    let rounds = Arc::new(Rounds::default());
    for of in [Of::Requests, Of::Others].into_iter().cycle().take(2 * AT_ONCE) {
        crew.task("follow-up", work(Arc::clone(&challenger), Arc::clone(&rounds), of, crew.clone()));
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = challenger.bells.flagged.notified() => {}
        }
        let world = challenger.sight.world();
        if world.held.number > challenger.beat.done() {
            // The change is about to be in the maps; the bell is rung again then.
            continue;
        }
        for round in challenger.follow_up.due(&world) {
            rounds.put(round);
        }
    }
}

/// Why clients of a node are not challenged at all.
pub(super) fn pointless(sight: &Sight) -> Option<&'static str> {
    match (sight.mode(), sight.settings.answer) {
        (Mode::Observe, _) => Some(OBSERVES),
        (_, Answer::Drop) => Some(ANSWERS_NOBODY),
        (Mode::Enforce, Answer::Refuse) => None,
    }
}

/// Whose clients are to be challenged: nodes that are cut, and their backends.
struct ToChallenge {
    world: Arc<World>,
    nodes: Vec<NodeName>,
    backends: Arc<Backends<usize>>,
}

impl ToChallenge {
    /// The nodes of `names` that are cut and have backends; `None` where there are none.
    fn of(challenger: &Challenger, names: &BTreeSet<NodeName>) -> Option<Self> {
        if pointless(&challenger.sight).is_some() {
            return None;
        }
        let world = challenger.sight.world();
        let exemptions = world.exemptions();
        let mut nodes: Vec<NodeName> = Vec::new();
        let mut backends = Backends::new();
        // A flag may be gone by the time of its round.
        for name in names.iter().filter(|name| world.enforces(name)) {
            if add_backends(&mut backends, &world.view, name, &exemptions, nodes.len()) {
                nodes.push(name.clone());
            }
        }
        (!nodes.is_empty()).then(|| Self { world, nodes, backends: Arc::new(backends) })
    }

    /// The flows that must be listed.
    fn wanted(&self) -> Vec<(Family, WantedFlow)> {
        of_backends(&self.backends, None)
    }

    /// Challenges all clients in what was listed since `start`, notes the outcome for `status`, and tells the requests of `rounds` what was
    /// found. Blocking, for a second or so.
    fn challenge(
        self,
        challenger: &Challenger,
        rounds: &[Round],
        start: Instant,
        listed: Result<Vec<Dump>, Arc<conntrack::Error>>,
    ) -> Rows {
        let Self { world, nodes, backends } = self;
        let coverage = Arc::clone(&challenger.sight.world().coverage);
        let mut surroundings =
            ChallengeSurroundings { challenger, rounds, nodes: &nodes, coverage, failed: None };
        let manner = world.findings.manner();
        let outcome = listed.map_err(chain).and_then(|listed| {
            let mut conntrack = Conntrack::open(challenger.reader.zone()).map_err(chain)?;
            challenge::challenge(
                &mut conntrack,
                listed,
                start,
                &backends,
                nodes.len(),
                &manner,
                &mut surroundings,
            )
            .map_err(chain)
        });
        let ChallengeSurroundings { coverage, failed, .. } = surroundings;
        let rows: Rows = match outcome {
            Ok(reports) => {
                nodes.iter().cloned().zip(reports.into_iter().map(|report| row(report, &failed))).collect()
            }
            Err(error) => {
                let failed = ChallengeRow { problem: Some(error), ..ChallengeRow::default() };
                nodes.iter().map(|node| (node.clone(), failed.clone())).collect()
            }
        };
        for (node, row) in &rows {
            note(challenger, &world, node, row, &coverage);
        }
        rows
    }
}

/// Logs and notes the outcome for a node. Has the node challenged again where more of it is reached by now.
fn note(challenger: &Challenger, world: &World, name: &NodeName, row: &ChallengeRow, reached: &Coverage) {
    let node = name.as_str();
    match &row.problem {
        None => {
            tracing::info!(
                event = "clients-challenged",
                node,
                challenged = row.challenged,
                closed = row.closed,
                seconds = row.seconds,
                "idle clients were challenged"
            );
        }
        Some(problem) => tracing::warn!(
            event = "challenge-incomplete",
            node,
            problem,
            challenged = row.challenged,
            "not all idle clients were challenged"
        ),
    }
    let coverage = Arc::clone(&challenger.sight.world().coverage);
    // A device may have been attached while this went on.
    if world.view.node(name).is_some_and(|node| coverage.reaches_more_of(node, reached)) {
        challenger.follow_up.reached([name.clone()]);
        challenger.bells.flagged.notify_one();
    }
    challenger.follow_up.note_challenged(name, row.clone());
}

/// The part of the agent that a round of challenges sees.
struct ChallengeSurroundings<'a> {
    challenger: &'a Challenger,
    rounds: &'a [Round],
    /// The challenged nodes, in the challenge's order.
    nodes: &'a [NodeName],
    coverage: Arc<Coverage>,
    failed: Option<String>,
}

impl Surroundings for ChallengeSurroundings<'_> {
    fn entry(&mut self, backend: Addr) -> Option<Entry> {
        // Challenges come in as the backend's own packets do: by the VLAN device, even where the device below it is attached.
        let ifindex = self.coverage.entry(backend.into())?;
        Some(Entry { ifindex, mac: self.coverage.mac(ifindex) })
    }

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<bool> {
        let (taken, error) = challenge::inject(&self.challenger.injector, frames);
        self.failed = self.failed.take().or(error.map(|error| error.to_string()));
        taken
    }

    fn first_round(&mut self, reports: &[Report], over: bool) {
        for (node, report) in self.nodes.iter().zip(reports) {
            let row = row(report.clone(), &self.failed);
            for request in
                self.rounds.iter().filter(|round| round.node == *node).flat_map(|round| &round.requests)
            {
                request.send_replace(Progress {
                    row: Some(row.clone()),
                    challenged: over,
                    ended: over && row.challenged == 0,
                });
            }
            self.challenger.follow_up.note_challenged(node, row);
        }
    }

    fn go_on(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| self.challenger.sight.world().enforces(node))
    }
}

fn row(report: Report, failed: &Option<String>) -> ChallengeRow {
    let problem = match (report.stopped, report.incomplete) {
        (true, _) => Some("ended early: the node is not cut any more".to_owned()),
        (_, true) => Some(Note::FlowsMissing.to_string()),
        _ => None,
    };
    ChallengeRow {
        is_complete: !report.incomplete,
        listed: report.listed,
        challenged: report.challenged,
        closed: report.closed,
        skipped_closed: report.skipped.closed,
        skipped_not_tcp: report.skipped.not_tcp,
        skipped_opening_or_ended: report.skipped.opening + report.skipped.ended,
        unreachable: report.skipped.no_device + report.skipped.not_injected,
        liberal: report.liberal,
        seconds: report.seconds,
        problem: problem.or_else(|| failed.clone().filter(|_| report.skipped.not_injected > 0)),
    }
}
