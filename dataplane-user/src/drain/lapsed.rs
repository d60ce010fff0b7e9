//! Restores what has lapsed, as the ledger names it: for the guard, and for a caller that knows that no agent goes on.
use std::{collections::BTreeMap, path::Path};

use super::{Kernel, restore};
use crate::{
    ipvs,
    ledger::{self, Entry, IpvsLock, Ledger, Pair, Record},
};

/// Why what has lapsed was not restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum LapseError {
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The tables cannot be used.
    #[error(transparent)]
    Tables(#[from] ipvs::Error),
    /// The ledger cannot be understood.
    #[error("the ledger {0}")]
    Unread(&'static str),
}

/// Restores what has lapsed, and once more what was `struck` from the ledger before. Strikes from the ledger what is done; returns the
/// pairs that could not be restored.
pub(super) fn lapse(
    run_dir: &Path,
    struck: &mut BTreeMap<Pair, Entry>,
) -> Result<BTreeMap<Pair, Option<i32>>, LapseError> {
    let _turn = IpvsLock::take(run_dir)?;
    let loaded = Ledger::read(run_dir)?;
    if let Some(problem) = loaded.unread() {
        return Err(LapseError::Unread(problem));
    }
    let mut entries = struck.clone();
    entries.extend(loaded.entries.clone());
    let left = restore_entries(&entries)?;
    let done: BTreeMap<Pair, Entry> =
        loaded.entries.into_iter().filter(|(pair, _)| !left.contains_key(pair)).collect();
    if !done.is_empty() {
        // The lines are appended and the file is not rewritten: lines that a stopped agent still appends to it must be found.
        let drops: Vec<Record> = done.keys().map(|pair| Record::Drop(*pair)).collect();
        Ledger::open(run_dir)?.0.append(&drops)?;
        struck.extend(done);
    }
    Ok(left)
}

/// Restores what the ledger in a run folder still names, for an agent whose lease has lapsed; returns the pairs that could not be restored.
///
/// # Errors
/// Where the ledger or the tables cannot be used.
pub fn restore_named(run_dir: &Path) -> anyhow::Result<BTreeMap<Pair, Option<i32>>> {
    Ok(lapse(run_dir, &mut BTreeMap::new())?)
}

/// Restores all that the ledger in a run folder names, and removes the ledger; returns how many destinations it named. For a caller that
/// knows that no agent runs.
///
/// # Errors
/// Where something cannot be restored; the ledger stays then.
pub fn restore_all(run_dir: &Path) -> anyhow::Result<usize> {
    if !run_dir.exists() {
        return Ok(0);
    }
    let turn = IpvsLock::take(run_dir)?;
    let loaded = Ledger::read(run_dir)?;
    if let Some(problem) = loaded.unread() {
        anyhow::bail!("the ledger in {} {problem}: what it says was not restored", run_dir.display());
    }
    let entries = loaded.entries;
    if !entries.is_empty() {
        let left = restore_entries(&entries)?;
        if let Some((pair, _)) = left.first_key_value() {
            anyhow::bail!("{} destinations cannot be restored in IPVS: {pair} ...", left.len());
        }
    }
    // A guard that still runs finds no ledger any more: an agent's guard ends, and one that was started apart takes its locks anew.
    Ledger::remove(run_dir)?;
    drop(turn);
    Ok(entries.len())
}

/// Restores all of these entries; returns those that could not be restored, with the kernel's error number where there is one. Without IPVS
/// there is nothing to restore.
///
/// # Errors
/// Where the tables cannot be read or changed.
pub fn restore_entries(entries: &BTreeMap<Pair, Entry>) -> Result<BTreeMap<Pair, Option<i32>>, ipvs::Error> {
    let restored = match Kernel::open(Box::new(|_| {}), 0, None) {
        Ok(mut kernel) => restore(&mut kernel, entries)?,
        Err(ipvs::Error::NotLoaded) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    if restored.changes > 0 {
        let changes = restored.changes;
        let left = restored.left.len();
        tracing::warn!(
            event = "ipvs-lapsed-restored",
            changes,
            left,
            "drained IPVS destinations whose lease had lapsed were restored"
        );
    }
    Ok(restored.left)
}
