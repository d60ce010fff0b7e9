//! A process of its own that puts back what has lapsed, whatever has become of the agent.
use std::{
    collections::BTreeMap,
    io,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{SigSet, Signal},
    unistd::{getppid, setsid},
};

use super::{Kernel, holds, restore};
use crate::{
    ipvs,
    ledger::{self, Entry, Ledger, Owner, Pair, Record, Turn},
};

/// How often the lease is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How long to wait after something could not be put back, and before what was put back is read once more.
const AGAIN: Duration = Duration::from_secs(1);

/// Starts a guard for the ledger in a run folder and the lease below a pin folder, from this very program.
///
/// # Errors
/// Where the process cannot be made.
pub fn spawn_guard(run_dir: &Path, pin_dir: &Path) -> io::Result<Child> {
    // The program that runs, also where another one lies in its place by now.
    Command::new("/proc/self/exe")
        .arg("guard")
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--run-dir")
        .arg(run_dir)
        .arg("--pin-dir")
        .arg(pin_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}

/// Watches over the ledger in a run folder as long as the agent, process `parent`, lives, and then until there is nothing left in it to guard.
///
/// # Errors
/// Where the folder cannot be used.
pub fn guard(run_dir: &Path, pin_dir: &Path, parent: u32) -> Result<(), ledger::Error> {
    // Whoever ends the agent's session or its group means the agent. This one ends by itself, once nothing is left to be put back.
    let _leader_already = setsid();
    let mut ends = SigSet::empty();
    ends.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    let _not_blocked = ends.thread_block();
    let mut watch =
        Watch { run_dir, pin_dir, parent, lock: None, struck: BTreeMap::new(), told: String::new() };
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
    pin_dir: &'a Path,
    parent: u32,
    lock: Option<Owner>,
    /// What was put back, and is not in the ledger any more. An agent that is stopped may have changes of it on their way.
    struck: BTreeMap<Pair, Entry>,
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
        if Ledger::is_empty(self.run_dir)? && self.struck.is_empty() {
            return Ok((!orphaned).then_some(TICK));
        }
        // Once no agent has the ledger nobody takes it over while this one puts back.
        let owner = if orphaned { Owner::take(self.run_dir, Duration::ZERO)? } else { None };
        if orphaned && owner.is_none() {
            // What was struck is this guard's matter no more: no change of a dead agent is on its way.
            self.struck.clear();
            // Another agent's by now, and its guard's. Until that one has this lock, which is given back for it, nobody else would put back.
            return Ok(self.lock.take().map(|_given_back| TICK));
        }
        if holds(self.pin_dir) {
            self.struck.clear();
            return Ok(Some(TICK));
        }
        if self.lock.is_none() {
            return Ok(Some(TICK));
        }
        match lapse(self.run_dir, &mut self.struck) {
            Ok(left) if left.is_empty() && owner.is_some() => Ok(None),
            Ok(left) => Ok(Some(self.left(&left))),
            // Another agent's, which began one anew: nothing of it is this guard's.
            Err(Failure::Unread(_)) if orphaned => Ok(None),
            Err(error) => Ok(Some(self.failed(error))),
        }
    }

    fn left(&mut self, left: &BTreeMap<Pair, Option<i32>>) -> Duration {
        if let Some((pair, errno)) = left.first_key_value() {
            self.tell(format!("{} destinations cannot be put back: {pair}, error {errno:?}", left.len()));
        }
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

/// Puts back what has lapsed, once more what was `struck` from the ledger before, and strikes what is done; gives what could not be put back.
fn lapse(run_dir: &Path, struck: &mut BTreeMap<Pair, Entry>) -> Result<BTreeMap<Pair, Option<i32>>, Failure> {
    let _turn = Turn::take(run_dir)?;
    let loaded = Ledger::read(run_dir)?;
    if let Some(problem) = loaded.unread() {
        return Err(Failure::Unread(problem));
    }
    let mut entries = struck.clone();
    entries.extend(loaded.entries.clone());
    let left = put_back(&entries)?;
    let done: BTreeMap<Pair, Entry> =
        loaded.entries.into_iter().filter(|(pair, _)| !left.contains_key(pair)).collect();
    if !done.is_empty() {
        // Added to the file and not written anew: what a stopped agent still writes there must be found.
        let drops: Vec<Record> = done.keys().map(|pair| Record::Drop(*pair)).collect();
        Ledger::open(run_dir)?.0.append(&drops)?;
        struck.extend(done);
    }
    Ok(left)
}

/// Puts back what the ledger in a run folder still names, for an agent whose lease has lapsed; gives what could not be put back.
///
/// # Errors
/// Where the ledger or the tables cannot be used.
pub fn put_back_named(run_dir: &Path) -> anyhow::Result<BTreeMap<Pair, Option<i32>>> {
    Ok(lapse(run_dir, &mut BTreeMap::new())?)
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

/// Puts all of these back; gives what could not be, with the kernel's error number where there is one. Without IPVS there is nothing to put back.
///
/// # Errors
/// Where the tables cannot be read or changed.
pub fn put_back(entries: &BTreeMap<Pair, Entry>) -> Result<BTreeMap<Pair, Option<i32>>, ipvs::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ipvs::{Destination, Protocol, ServiceKey},
        ledger::Phase,
    };

    /// Who takes over may be killed before it has a guard: the one before it is there as long as that.
    #[test]
    fn the_guard_of_a_dead_agent_leaves_once_the_next_one_s_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path();
        let address = "10.96.0.1:80".parse().unwrap();
        let destination = "10.244.2.7:8080".parse().unwrap();
        let pair = Pair { service: ServiceKey::Address { address, protocol: Protocol::TCP }, destination };
        let original = Destination::new(destination, 1);
        let entry = Entry { node: "node-b".into(), phase: Phase::Lowered, original };
        Ledger::open(run_dir).unwrap().0.append(&[Record::Own(pair, entry)]).unwrap();
        let mut watch = Watch {
            run_dir,
            pin_dir: &run_dir.join("none"),
            // Nobody's: its agent is dead.
            parent: 0,
            lock: None,
            struck: BTreeMap::new(),
            told: String::new(),
        };
        assert!(watch.is_orphaned());
        let next_agent = Owner::take(run_dir, Duration::ZERO).unwrap().unwrap();
        for look in 0..20 {
            assert_eq!(watch.step().unwrap(), Some(TICK), "look {look}");
        }
        // It keeps that one's guard from nothing.
        let next_guard = Owner::take_guard(run_dir, Duration::ZERO).unwrap().unwrap();
        assert_eq!(watch.step().unwrap(), None);
        drop((next_agent, next_guard));
    }
}
