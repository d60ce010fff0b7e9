//! A process of its own that puts back what has lapsed, whatever has become of the agent.
use std::{
    collections::BTreeMap,
    io,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{SigSet, Signal},
    unistd::{getppid, setsid},
};

use super::{Kernel, restore};
use crate::{
    flags::monotonic_ns,
    ipvs,
    ledger::{self, Entry, LeaseFile, Ledger, Owner, Pair, Turn},
};

/// How often the lease is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How long to wait after something could not be put back.
const AGAIN: Duration = Duration::from_secs(1);
/// How long another agent must have had the ledger before the guard of a dead one leaves it to that agent's guard, which is started within that time.
const RIVAL: Duration = Duration::from_secs(1);

/// Starts a guard for the ledger in a run folder, from this very program.
///
/// # Errors
/// Where the process cannot be made.
pub fn spawn_guard(run_dir: &Path) -> io::Result<Child> {
    // The program that runs, also where another one lies in its place by now.
    Command::new("/proc/self/exe")
        .arg("guard")
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--run-dir")
        .arg(run_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}

/// Watches over the ledger in a run folder as long as the agent, process `parent`, lives, and then until there is nothing left in it to guard.
///
/// # Errors
/// Where the folder cannot be used.
pub fn guard(run_dir: &Path, parent: u32) -> Result<(), ledger::Error> {
    // Whoever ends the agent's session or its group means the agent. This one ends by itself, once nothing is left to be put back.
    let _leader_already = setsid();
    let mut ends = SigSet::empty();
    ends.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    let _not_blocked = ends.thread_block();
    let mut watch = Watch { run_dir, parent, lock: None, rival_since: None, told: String::new() };
    loop {
        match watch.step() {
            Ok(None) => return Ok(()),
            Ok(Some(pause)) => thread::sleep(pause),
            // Without agent and ledger nobody says what there is to be put back.
            Err(error) if watch.is_orphaned() && !Ledger::path(run_dir).exists() => return Err(error),
            Err(error) => thread::sleep(watch.failed(error)),
        }
    }
}

/// The lease and the ledger, as they are there.
struct Watch<'a> {
    run_dir: &'a Path,
    parent: u32,
    lock: Option<Owner>,
    rival_since: Option<Instant>,
    told: String,
}

impl Watch<'_> {
    /// Told by whoever started it: that one may have died before this could be asked.
    fn is_orphaned(&self) -> bool {
        u32::try_from(getppid().as_raw()) != Ok(self.parent)
    }

    /// One look; gives when to look again, or nothing where there is nothing left to guard.
    fn step(&mut self) -> Result<Option<Duration>, ledger::Error> {
        if self.lock.is_none() {
            // An earlier agent's guard may be at work.
            self.lock = Owner::take_guard(self.run_dir, Duration::ZERO)?;
        }
        let orphaned = self.is_orphaned();
        if Ledger::is_empty(self.run_dir)? {
            return Ok((!orphaned).then_some(TICK));
        }
        // Not by the lease's epoch: that rises as well where the agent that died had lapsed before.
        if orphaned && Owner::take(self.run_dir, Duration::ZERO)?.is_none() {
            if self.rival_since.get_or_insert_with(Instant::now).elapsed() > RIVAL {
                return Ok(None);
            }
        } else {
            self.rival_since = None;
        }
        if LeaseFile::look(self.run_dir)?.holds(monotonic_ns()) {
            return Ok(Some(TICK));
        }
        match self.lock.as_ref().map(|_| lapse(self.run_dir)) {
            Some(Ok(left)) => Ok(Some(self.left(&left))),
            None => Ok(Some(TICK)),
            // Another agent's, which began one anew: nothing of it is this guard's.
            Some(Err(Failure::Unread(_))) if orphaned => Ok(None),
            Some(Err(error)) => Ok(Some(self.failed(error))),
        }
    }

    fn left(&mut self, left: &BTreeMap<Pair, Option<i32>>) -> Duration {
        let Some((pair, errno)) = left.first_key_value() else { return TICK };
        self.tell(format!("{} destinations cannot be put back: {pair}, error {errno:?}", left.len()));
        AGAIN
    }

    fn failed(&mut self, error: impl Into<anyhow::Error>) -> Duration {
        self.tell(format!("{:#}", error.into()));
        AGAIN
    }

    /// Says each thing once.
    fn tell(&mut self, problem: String) {
        if self.told != problem {
            tracing::error!(problem, "guard: cannot put back what has lapsed; tried again");
            self.told = problem;
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    #[error(transparent)]
    Tables(#[from] ipvs::Error),
    #[error("the ledger {0}")]
    Unread(&'static str),
}

/// Puts back what has lapsed; gives what could not be.
fn lapse(run_dir: &Path) -> Result<BTreeMap<Pair, Option<i32>>, Failure> {
    let turn = Turn::take(run_dir)?;
    let lease_file = LeaseFile::open(run_dir)?;
    let Some(lease) = lease_file.let_go(&turn, monotonic_ns())? else { return Ok(BTreeMap::new()) };
    let loaded = Ledger::read(run_dir)?;
    if let Some(problem) = loaded.unread() {
        return Err(Failure::Unread(problem));
    }
    let mut entries = loaded.entries;
    let left = put_back(&entries)?;
    if left.is_empty() {
        lease_file.put_back(lease)?;
    }
    // An agent that is stopped may have changes on their way: as long as it lives nothing is forgotten, and all is looked at again.
    if Owner::take(run_dir, Duration::ZERO)?.is_some() {
        entries.retain(|pair, _| left.contains_key(pair));
        let (mut ledger, _) = Ledger::open(run_dir)?;
        ledger.rewrite(&entries)?;
    }
    Ok(left)
}

/// Puts back all that the ledger in a run folder names, and removes it; gives how many destinations that were. For whoever knows that no agent
/// runs.
///
/// # Errors
/// Where something cannot be put back: the ledger stays then.
pub fn put_all_back(run_dir: &Path) -> anyhow::Result<usize> {
    if !run_dir.exists() {
        return Ok(0);
    }
    let turn = Turn::take(run_dir)?;
    let loaded = Ledger::read(run_dir)?;
    if let Some(problem) = loaded.unread() {
        anyhow::bail!("the ledger in {} {problem}: what it says was not put back", run_dir.display());
    }
    let entries = loaded.entries;
    if !entries.is_empty() {
        let left = put_back(&entries)?;
        if let Some((pair, _)) = left.first_key_value() {
            anyhow::bail!("{} destinations cannot be put back into IPVS: {pair} ...", left.len());
        }
    }
    // A guard that still runs finds nothing there any more, and ends.
    Ledger::remove(run_dir)?;
    drop(turn);
    Ok(entries.len())
}

/// Puts everything back; gives what could not be, with the kernel's error number where there is one. Without IPVS there is nothing to put back.
fn put_back(entries: &BTreeMap<Pair, Entry>) -> Result<BTreeMap<Pair, Option<i32>>, ipvs::Error> {
    let restored = match Kernel::open(Box::new(|_| {})) {
        Ok(mut kernel) => restore(&mut kernel, entries)?,
        Err(ipvs::Error::NotLoaded) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    if restored.changes > 0 {
        let (changes, left) = (restored.changes, restored.left.len());
        tracing::warn!(changes, left, "put back into IPVS what had been taken out and has lapsed");
    }
    Ok(restored.left)
}
