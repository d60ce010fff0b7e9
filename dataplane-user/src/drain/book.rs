use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

use super::{Book, holds, spawn_guard};
use crate::ledger::{Entry, Error, IpvsLock, Ledger, Loaded, OwnerLock, Pair, Record};

/// How long another process that has the ledger (an agent that ends, a guard that restores) is waited for at a time.
const PATIENCE: Duration = Duration::from_millis(500);
/// How soon a guard that ended is replaced.
const RESPAWN: Duration = Duration::from_secs(1);

/// Who restores what a dead agent drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardKind {
    /// A process that the agent starts, and starts again when it ends.
    Child,
    /// A process that others start (`nodefence guard`).
    External,
}

/// Says that this thread lives: the lease is renewed only as long as the thread does.
type Alive = Box<dyn Fn() + Send>;

/// The ledger on the disk, its lease, and the guard that watches over both.
pub struct Ledgers {
    run_dir: PathBuf,
    pin_dir: PathBuf,
    ledger: Ledger,
    alive: Alive,
    /// `None` where the guard was started apart.
    guard: Option<Guard>,
    owner: OwnerLock,
}

impl Ledgers {
    /// Takes the ledger over, with the entries that an earlier agent left in it. `None` where another process still has the ledger.
    ///
    /// # Errors
    /// Where its files cannot be used.
    pub fn open(
        run_dir: &Path,
        pin_dir: &Path,
        guard: GuardKind,
        alive: Alive,
    ) -> Result<Option<(Self, Loaded)>, Error> {
        let Some(owner) = OwnerLock::take(run_dir, PATIENCE)? else { return Ok(None) };
        let (ledger, loaded) = Ledger::open(run_dir)?;
        let guard = match guard {
            GuardKind::Child => Some(Guard { child: None, tried: None }),
            GuardKind::External => None,
        };
        let run_dir = run_dir.to_owned();
        let pin_dir = pin_dir.to_owned();
        let mut this = Self { run_dir, pin_dir, ledger, alive, guard, owner };
        if !loaded.entries.is_empty() {
            // An earlier agent's guard ends once this guard is there.
            this.ensure_guard();
        }
        Ok(Some((this, loaded)))
    }

    fn ensure_guard(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.ensure(&self.run_dir, &self.pin_dir);
        }
    }

    /// Has a guard run where there is something to guard. False where the lease has lapsed, or where others no longer find the ledger:
    /// nobody would restore what is drained from then on.
    pub fn holds(&mut self, guarded: bool) -> bool {
        if guarded {
            self.ensure_guard();
        }
        self.is_ours()
    }

    /// Ends the guard that this agent started, where nothing is ours any more.
    pub fn dismiss_guard(&mut self) {
        if let Some(mut child) = self.guard.as_mut().and_then(|guard| guard.child.take()) {
            let _ended_already = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl Book for Ledgers {
    type Lock = IpvsLock;

    fn begin(&mut self, records: &[Record]) -> Result<Option<IpvsLock>, Error> {
        (self.alive)();
        // Before the turn is taken: where the folder is gone there is no turn to take.
        if !self.is_ours() {
            return Ok(None);
        }
        let turn = IpvsLock::take(&self.run_dir)?;
        // Others may have had the turn for long.
        if !self.is_ours() {
            return Ok(None);
        }
        self.ledger.append(records)?;
        self.ensure_guard();
        Ok(Some(turn))
    }

    fn is_ours(&self) -> bool {
        self.ledger.is_there() && self.owner.is_in(&self.run_dir) && holds(&self.pin_dir)
    }

    fn alive(&mut self) {
        (self.alive)();
    }

    fn write_all(&mut self, entries: &BTreeMap<Pair, Entry>) -> Result<(), Error> {
        self.ledger.rewrite(entries)
    }

    fn note(&mut self, records: &[Record]) -> Result<(), Error> {
        self.ledger.append(records)
    }

    fn rest(&mut self, count: usize, entries: impl FnOnce() -> BTreeMap<Pair, Entry>) -> Result<(), Error> {
        self.ledger.rest(count, entries)
    }
}

/// The process of a guard that the agent starts itself.
struct Guard {
    child: Option<Child>,
    tried: Option<Instant>,
}

impl Guard {
    fn runs(&mut self) -> bool {
        let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !runs {
            // The guard ended, or something killed it.
            self.child = None;
        }
        runs
    }

    /// Starts a guard where none of ours runs.
    fn ensure(&mut self, run_dir: &Path, pin_dir: &Path) {
        if self.runs() {
            return;
        }
        if self.tried.is_some_and(|tried| tried.elapsed() < RESPAWN) {
            return;
        }
        self.tried = Some(Instant::now());
        match spawn_guard(run_dir, pin_dir) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                tracing::error!(
                    event = "guard-not-started",
                    %error,
                    "no guard could be started: what is drained from IPVS outlives this agent"
                );
            }
        }
    }
}
