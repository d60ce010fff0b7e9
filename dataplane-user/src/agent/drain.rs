//! Drains flagged nodes from IPVS: a thread of its own, since the kernel may take its time.
mod ending;
mod opening;
mod rows;

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    beat::Beat,
    bell::{Bell, Ending},
    chain::chain,
    idle,
    reader::Reader,
    rescue_state::RescueState,
    sight::Sight,
    threads::{Crew, Priority},
};
use crate::{
    cluster::{ClusterView, NodeName},
    drain::{Book as _, Drive, Failure, GuardKind, Kernel, Ledgers, Reopened, drain_settings, holds},
    flags::{monotonic_ns, now},
    ipvs::{self, is_loaded},
    ledger::{Ledger, Loaded, has_guard_apart},
    plan::{
        ExemptPort, Mode, VirtualAddresses,
        drain::{Drain, DrainSettings, Flagged, WantedDestinations},
        left_out,
    },
    proxy,
    report::{GuardRow, IpvsRow},
};
use opening::Opening;
use rows::{node_row, note};

/// Longest time between two looks at what is flagged, and at the lease.
const LOOK: Duration = Duration::from_millis(500);
/// How long to wait before a step is tried again: IPVS is not loaded, another process has the ledger, the kernel refuses to answer.
const AGAIN: Duration = Duration::from_millis(500);
/// How soon to look again whether the lease is renewed, while nothing is drained.
const LAPSED: Duration = Duration::from_millis(20);

/// The parts of the agent that the thread `drain` gets.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) sight: Sight,
    pub(super) beat: Arc<Beat>,
    /// Messages to the thread, and the state that it shows.
    pub(super) bell: Arc<Bell>,
    /// Deleted flows are remembered there, for packets on their way.
    pub(super) rescue: Arc<RescueState>,
    /// Lists conntrack.
    pub(super) reader: Reader,
}

/// The thread `drain`. Dropping this value ends the thread. The drop returns once drained destinations are restored, unless another
/// agent takes over.
pub(super) struct Draining {
    sight: Sight,
    bell: Arc<Bell>,
    crew: Crew,
    thread: Option<JoinHandle<()>>,
}

impl Draining {
    pub(super) fn start(given: Given, crew: &Crew) -> std::io::Result<Self> {
        let sight = given.sight.clone();
        let bell = Arc::clone(&given.bell);
        let thread = crew.thread("drain", Priority::First, || Work::new(given).run())?;
        Ok(Self { sight, bell, crew: crew.clone(), thread: Some(thread) })
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        // The agent ends with this thread.
        self.crew.end();
        let leave = self.sight.world().held.handed_over;
        self.bell.end(if leave { Ending::Leave } else { Ending::Restore });
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

struct Work {
    given: Given,
    opening: Opening,
    drive: Option<Drive<Kernel, Ledgers>>,
    /// Nobody has looked yet whether an earlier agent left something.
    first: bool,
    view: Arc<ClusterView>,
    addresses: Arc<VirtualAddresses>,
    /// When the source last confirmed the view.
    confirmed: Duration,
    /// The plan was not told yet what kube-proxy wants by this view.
    unseen: bool,
    flagged: Vec<Flagged>,
    /// The problem with the ledger of an earlier agent.
    inherited: Option<String>,
    problem: Option<String>,
    changes: u64,
    /// How the kernel was set at the last look.
    drain_settings: DrainSettings,
    /// The lease has lapsed, or the ledger was removed: nothing more is drained.
    lapsed: bool,
    /// Something was seen or done that `status` does not show yet.
    news: bool,
    told: Option<Instant>,
}

impl Work {
    fn new(given: Given) -> Self {
        let world = given.sight.world();
        let view = Arc::clone(&world.view);
        let addresses = Arc::clone(&world.addresses);
        Self {
            drain_settings: drain_settings(world.held.mode == Mode::Enforce),
            opening: Opening {
                rescue: Arc::clone(&given.rescue),
                reader: given.reader.clone(),
                beat: Arc::clone(&given.beat),
            },
            given,
            drive: None,
            first: true,
            view,
            addresses,
            confirmed: Duration::ZERO,
            unseen: true,
            flagged: Vec::new(),
            inherited: None,
            problem: None,
            changes: 0,
            lapsed: false,
            news: true,
            told: None,
        }
    }

    /// Drains until the agent ends.
    ///
    /// # Errors
    /// Where the lease has lapsed, once the drained destinations are restored: the agent ends.
    fn run(mut self) -> anyhow::Result<()> {
        loop {
            let pause = self.step().unwrap_or_else(|problem| {
                self.fail(Some(problem));
                AGAIN
            });
            self.tell();
            if self.lapsed {
                return self.give_up();
            }
            match self.given.bell.wait(pause) {
                None => {}
                Some(Ending::Leave) => return Ok(()),
                Some(Ending::Restore) => return self.restore(),
            }
        }
    }

    /// Notes a problem, and logs each new one.
    fn fail(&mut self, problem: Option<String>) {
        self.news |= problem != self.problem;
        if let Some(new) = problem.as_ref().filter(|new| self.problem.as_ref() != Some(*new)) {
            tracing::error!(
                event = "ipvs-drain-failed",
                problem = new,
                "flagged nodes are not drained from IPVS, or not restored; the agent tries again"
            );
        }
        self.problem = problem;
    }

    /// One look at flagged nodes and at the tables; returns the time to the next one.
    fn step(&mut self) -> Result<Duration, String> {
        self.given.beat.drain_lives(monotonic_ns());
        let changed = self.look();
        self.news |= changed;
        if self.drive.is_none() {
            let opened = self.open();
            self.given.beat.set_drains(self.drive.is_some());
            if !opened.map_err(chain)? {
                return Ok(if self.flagged.is_empty() { LOOK * 4 } else { AGAIN });
            }
        }
        let Some(drive) = &mut self.drive else { return Ok(AGAIN) };
        if changed {
            drive.set_flagged(&self.flagged);
        }
        let flagged = !self.flagged.is_empty();
        let busy = !drive.machine.is_empty();
        if flagged || busy || drive.machine.remembers() {
            if std::mem::take(&mut self.unseen) {
                let view = Arc::clone(&self.view);
                let addresses = Arc::clone(&self.addresses);
                drive.machine.set_wanted(WantedDestinations::new(
                    view,
                    addresses,
                    &self.given.sight.own_node,
                ));
            }
            drive.machine.confirm(self.confirmed);
        }
        if !drive.book().holds(busy) {
            return Ok(self.lapsed());
        }
        let urgent = self.given.bell.board().urgent.clone();
        drive.urge(urgent.iter().copied());
        let due = |drive: &Drive<_, _>| {
            let now = Duration::from_nanos(monotonic_ns());
            drive.next(flagged).map(|next| next.saturating_sub(now))
        };
        if due(drive) == Some(Duration::ZERO) {
            self.news = true;
            self.drain_settings = drain_settings(self.drain_settings.enforce);
            drive.set_settings(self.drain_settings);
            let round = drive.round();
            if !drive.is_urged() {
                self.given.bell.board().urgent.retain(|key| !urgent.contains(key));
            }
            match round {
                Ok(round) => {
                    self.changes += round.changes as u64;
                    if round.lapsed {
                        return Ok(self.lapsed());
                    }
                }
                Err(Failure::Tables(error)) => {
                    self.reopen(&error);
                    return Err(chain(error));
                }
                Err(error @ Failure::Ledger(_)) => return Err(chain(error)),
            }
        }
        self.fail(None);
        let Some(drive) = &self.drive else { return Ok(AGAIN) };
        Ok(due(drive).unwrap_or(LOOK).clamp(Duration::from_millis(1), LOOK))
    }

    /// Sets whether tables are changed from now on, or changes are only planned. True where that is new.
    fn turn(&mut self, enforce: bool) -> bool {
        let turned = std::mem::replace(&mut self.drain_settings.enforce, enforce) != enforce;
        if let Some(drive) = self.drive.as_mut().filter(|_| turned) {
            drive.set_settings(self.drain_settings);
        }
        turned
    }

    /// Learns which nodes are flagged. True where that is new.
    fn look(&mut self) -> bool {
        // The time of the confirmation is read before the snapshot: it is of the snapshot's view, or that view was read later.
        let confirmed = self.given.beat.confirmed();
        let world = self.given.sight.world();
        self.confirmed = Duration::from_nanos(confirmed.max(world.loaded.mono));
        let turned = self.turn(world.held.mode == Mode::Enforce);
        // Where something else forwards, the tables belong to others: what an earlier agent drained is restored.
        let ours = world.proxy.mode == Some(proxy::Mode::Ipvs);
        let now = now();
        // In observe mode the changes are only planned.
        let observed = world.observed().filter(|_| !self.drain_settings.enforce);
        // A claim may be over, though the owner of verdicts has not handled its end yet.
        let flagged = world.enforced().chain(observed).filter(|(name, _)| ours && world.holds(name, now));
        let since = flagged.map(|(name, bearer)| (name.clone(), bearer.challenge_since));
        let challenge_since: BTreeMap<NodeName, u64> = since.collect();
        let view = Arc::clone(&world.view);
        let challenged = self.given.bell.challenged_since(&challenge_since);
        let pointless = idle::pointless(&self.given.sight).is_some();
        let flagged: Vec<(NodeName, bool)> = challenge_since
            .into_keys()
            .map(|name| {
                let challenged = pointless || challenged.contains(&name);
                (name, challenged)
            })
            .collect();
        let before = self.flagged.iter().map(|node| (&node.name, node.challenged));
        if Arc::ptr_eq(&view, &self.view)
            && flagged.iter().map(|(name, challenged)| (name, *challenged)).eq(before)
        {
            return self.first || turned;
        }
        let left_out: Vec<ExemptPort> = left_out(&view).map(|(port, _)| port).collect();
        self.flagged = flagged
            .into_iter()
            .map(|(name, challenged)| {
                let backends = view.node(&name).map_or_else(Vec::new, |node| node.backends.clone());
                let index = view.index(&name);
                let here = left_out.iter().filter(|port| Some(port.node) == index);
                Flagged { name, backends, left_out: here.map(ExemptPort::backend).collect(), challenged }
            })
            .collect();
        self.unseen |= !Arc::ptr_eq(&view, &self.view);
        self.view = view;
        self.addresses = Arc::clone(&world.addresses);
        true
    }

    /// Opens the tables and the ledger where there is something to do. False where there is nothing, or where the thread must wait.
    fn open(&mut self) -> Result<bool, anyhow::Error> {
        let run_dir = &self.given.sight.settings.run_dir;
        if self.first && Ledger::is_empty(run_dir)? {
            self.first = false;
        }
        if !self.first && self.flagged.is_empty() {
            return Ok(false);
        }
        if !is_loaded() {
            if self.first {
                // The destinations that an earlier agent drained went with IPVS.
                let (mut ledger, loaded) = Ledger::open(run_dir)?;
                if let (Some(aside), Some(problem)) = (&loaded.aside, loaded.problem) {
                    let aside = aside.display();
                    tracing::warn!(
                        event = "ledger-put-aside",
                        "the ledger of an earlier agent {problem}; IPVS is not loaded, so nothing is left to restore; the ledger is stored as {aside}"
                    );
                }
                ledger.rewrite(&BTreeMap::new())?;
            }
            self.first = false;
            return Ok(false);
        }
        let kernel = self.opening.open()?;
        let pin_dir = &self.given.sight.settings.options.pin_dir;
        // From now on a lease that has lapsed is not renewed.
        self.given.beat.set_drains(true);
        anyhow::ensure!(
            holds(pin_dir),
            "verdicts are not renewed, so nothing can be drained that lapses with them"
        );
        let beat = Arc::clone(&self.given.beat);
        // Large tables are read for longer than a minute. Meanwhile this thread gives signs of life.
        let alive = Box::new(move || beat.drain_lives(monotonic_ns()));
        let Some((ledgers, loaded)) =
            Ledgers::open(run_dir, pin_dir, self.given.sight.settings.guard, alive)?
        else {
            anyhow::bail!("another process still has the ledger in {}", run_dir.display());
        };
        if !loaded.entries.is_empty() {
            tracing::info!(
                event = "ipvs-drain-adopted",
                destinations = loaded.entries.len(),
                "this agent goes on with what an earlier agent drained from IPVS"
            );
        }
        self.inherited = inherited(&loaded);
        if let (Some(problem), true) = (&self.inherited, loaded.aside.is_some()) {
            tracing::error!(
                event = "ipvs-weights-left",
                problem,
                "destinations of IPVS may still have weight 0"
            );
        }
        self.news = true;
        self.drain_settings = drain_settings(self.drain_settings.enforce);
        let mut machine = Drain::new(self.drain_settings, loaded.entries);
        let view = Arc::clone(&self.view);
        let addresses = Arc::clone(&self.addresses);
        machine.set_wanted(WantedDestinations::new(view, addresses, &self.given.sight.own_node));
        machine.set_flagged(&self.flagged, Duration::from_nanos(monotonic_ns()));
        self.drive = Some(Drive::new(machine, kernel, ledgers));
        self.first = false;
        Ok(true)
    }

    /// The tables do not answer: opens another socket, or none where IPVS is not loaded any more.
    fn reopen(&mut self, error: &ipvs::Error) {
        let Some(drive) = &mut self.drive else { return };
        match self.opening.again(error) {
            Reopened::Tables(kernel) => drive.replace_tables(kernel),
            Reopened::Gone => {
                let _told_again = drive.book().write_all(&BTreeMap::new());
                drive.book().dismiss_guard();
                self.close();
            }
            Reopened::NotYet => {}
        }
    }

    /// Closes the tables and the ledger: nothing of this agent's is left in them.
    fn close(&mut self) {
        self.drive = None;
        self.given.beat.set_drains(false);
    }

    /// The lease has lapsed, or somebody removed the ledger: no earlier reading holds. Returns the time to the next look.
    fn lapsed(&mut self) -> Duration {
        self.news = true;
        match &mut self.drive {
            // This process stood still, and nothing was drained.
            Some(drive) if drive.machine.is_empty() => {
                drive.book().dismiss_guard();
                self.close();
            }
            _ => self.lapsed = true,
        }
        LAPSED
    }

    /// Updates `status` where there is news, and now and then: others load IPVS and set its switches.
    fn tell(&mut self) {
        let news = std::mem::take(&mut self.news);
        if !news && self.told.is_some_and(|told| told.elapsed() < LOOK) {
            return;
        }
        self.told = Some(Instant::now());
        self.drain_settings = drain_settings(self.drain_settings.enforce);
        let DrainSettings { enforce, flushes } = self.drain_settings;
        let report = self.drive.as_ref().map(|drive| drive.machine.report()).unwrap_or_default();
        let loaded = is_loaded();
        let lowered_only = loaded && !self.flagged.is_empty() && enforce && !flushes;
        let exempt = report.values().any(|node| !node.exempt.is_empty());
        let row = IpvsRow {
            loaded,
            note: note(lowered_only, exempt && self.view.services.is_none()),
            problems: self.problem.iter().chain(&self.inherited).cloned().collect(),
            changes: self.changes,
            guard: match self.given.sight.settings.guard {
                GuardKind::Child => GuardRow::Child,
                GuardKind::External => {
                    GuardRow::External { seen: has_guard_apart(&self.given.sight.settings.run_dir) }
                }
            },
            nodes: report.into_iter().map(|(name, report)| (name, node_row(report))).collect(),
        };
        // A new set tells waiting packets that the tables were looked at.
        let balanced = || self.drive.as_ref().map(|drive| drive.machine.balanced()).unwrap_or_default();
        let balanced = news.then(|| Arc::new(balanced()));
        let mut board = self.given.bell.board();
        board.row = row;
        board.progress.flushes = flushes;
        if let Some(balanced) = balanced {
            board.progress.balanced = balanced;
        }
    }
}

/// The problem with the ledger of an earlier agent.
fn inherited(loaded: &Loaded) -> Option<String> {
    match (&loaded.aside, loaded.problem, loaded.damaged) {
        (Some(aside), Some(problem), _) => Some(format!(
            "the ledger of an earlier agent {problem}: what that one drained is not restored; it is kept as {}",
            aside.display()
        )),
        (None, _, lines) if lines > 0 => Some(format!("{lines} lines of the ledger could not be read")),
        _ => None,
    }
}
