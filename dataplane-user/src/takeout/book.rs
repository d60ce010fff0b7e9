use std::{
    collections::BTreeMap,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

use super::{Book, Claim, spawn_guard};
use crate::{
    flags::monotonic_ns,
    ledger::{Entry, Error, Held, Ledger, Loaded, Owner, Pair, Record, Turn},
};

/// How long another process that has the ledger (an agent that ends, a guard that puts things back) is waited for at a time.
const PATIENCE: Duration = Duration::from_millis(500);
/// How soon a guard that ended is replaced.
const RESPAWN: Duration = Duration::from_secs(1);

/// Up to when (CLOCK_MONOTONIC, ns) what is in the ledger holds: as long as the agent's verdicts.
type Until = Box<dyn Fn() -> u64 + Send>;

/// The ledger on the disk, its lease, and the guard that watches over both.
pub struct Ledgers {
    run_dir: PathBuf,
    ledger: Ledger,
    held: Held,
    until: Until,
    guard: Guard,
    owner: Owner,
}

impl Ledgers {
    /// Takes the ledger over, with what an earlier agent left in it. `None` where another process still has it.
    ///
    /// # Errors
    /// Where its files cannot be used.
    pub fn open(run_dir: &Path, until: Until) -> Result<Option<(Self, Loaded)>, Error> {
        let Some(owner) = Owner::take(run_dir, PATIENCE)? else { return Ok(None) };
        let (ledger, loaded) = Ledger::open(run_dir)?;
        let mut guard = Guard { child: None, tried: None };
        if !loaded.entries.is_empty() {
            // An earlier agent's guard ends once it sees another holder.
            guard.ensure(run_dir);
        }
        let held = Held::claim(run_dir, until())?;
        let run_dir = run_dir.to_owned();
        Ok(Some((Self { run_dir, ledger, held, until, guard, owner }, loaded)))
    }

    /// Prolongs the lease, and has a guard run where there is something to guard. False where the lease has lapsed.
    ///
    /// # Errors
    /// Where its files cannot be used.
    pub fn renew(&mut self, guarded: bool) -> Result<bool, Error> {
        let holds = self.turn()?.is_some();
        if guarded {
            self.guard.ensure(&self.run_dir);
        }
        Ok(holds)
    }

    /// Whether a guard of ours runs.
    pub fn is_guarded(&mut self) -> bool {
        self.guard.runs()
    }

    /// Ends the guard, where nothing is ours any more.
    pub fn dismiss_guard(&mut self) {
        if let Some(mut child) = self.guard.child.take() {
            let _ended_already = child.kill();
            let _reaped = child.wait();
        }
    }

    /// Has the lease hold up to another time from now on.
    pub fn hold_up_to(&mut self, until: Until) {
        self.until = until;
    }

    /// The turn, and the lease prolonged; `None` where it has lapsed, or where others do not find ledger and lease any more: nobody would put back what is
    /// taken out from then on.
    fn turn(&mut self) -> Result<Option<Turn>, Error> {
        if !self.ledger.is_there() || !self.held.is_there() || !self.owner.is_in(&self.run_dir) {
            return Ok(None);
        }
        let until = (self.until)();
        let turn = Turn::take(&self.run_dir)?;
        let holds = self.held.renew(&turn, monotonic_ns(), until)?;
        Ok(holds.then_some(turn))
    }
}

impl Book for Ledgers {
    type Turn = Turn;

    fn begin(&mut self, records: &[Record]) -> Result<Option<Turn>, Error> {
        let Some(turn) = self.turn()? else { return Ok(None) };
        self.ledger.append(records)?;
        self.guard.ensure(&self.run_dir);
        Ok(Some(turn))
    }

    fn hold(&mut self) -> Result<(), Error> {
        self.turn().map(drop)
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

impl Claim for Ledgers {
    fn claim_again(&mut self) -> Result<Option<Duration>, Error> {
        // Somebody may have removed the folder, with all that lay in it.
        let _said_below = DirBuilder::new().recursive(true).mode(0o700).create(&self.run_dir);
        if !self.owner.is_in(&self.run_dir)
            && let Some(owner) = Owner::take(&self.run_dir, PATIENCE)?
        {
            self.owner = owner;
        }
        let put_back = self.held.claim_again(&self.run_dir, (self.until)())?;
        Ok(put_back.map(Duration::from_nanos))
    }

    fn forget_all(&mut self) -> Result<(), Error> {
        self.ledger.rewrite(&BTreeMap::new())
    }
}

/// The guard's process.
struct Guard {
    child: Option<Child>,
    tried: Option<Instant>,
}

impl Guard {
    fn runs(&mut self) -> bool {
        let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !runs {
            // It ended, or something killed it.
            self.child = None;
        }
        runs
    }

    /// Starts one where none of ours runs.
    fn ensure(&mut self, run_dir: &Path) {
        if self.runs() {
            return;
        }
        if self.tried.is_some_and(|tried| tried.elapsed() < RESPAWN) {
            return;
        }
        self.tried = Some(Instant::now());
        match spawn_guard(run_dir) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                tracing::error!(%error, "no guard could be started: what is taken out of IPVS outlives this agent");
            }
        }
    }
}
