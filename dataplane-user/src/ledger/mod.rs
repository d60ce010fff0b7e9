//! The ledger: the file that names the destinations in the IPVS tables that are ours to restore. It outlives the agent, since a destination's
//! weight does not lapse by itself.
//!
//! The file is `ledger.log` in the run folder. It has a line for each step of each destination, written *before* the kernel's table changes.
//! Nothing is synced to the disk: the file must outlive processes, but not a reboot, which ends the tables too. Its first line names the boot
//! and the network namespace that it belongs to. In any other the file means nothing.
//!
//! The whole ledger has one deadline, the lease. It is renewed with the verdicts and lies in a pinned map ([`crate::dataplane::lease`]). Once
//! the lease has lapsed everything is restored.

mod file;
mod locks;
mod stored;
#[cfg(test)]
mod tests;

pub use file::{Ledger, Loaded, put_aside};
pub use locks::{IpvsLock, OwnerLock, WaitingGuard, has_guard_apart};
pub use nodefence_core::ledger::{Entry, Pair, Phase, Record};

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The beginning of the names of all files of the ledger.
pub const FILES: &str = "ledger.";

/// Whether `path` still leads to this open file. A file that was removed can still be written, but nobody else finds it.
fn is_at(file: &File, path: &Path) -> bool {
    let there = fs::symlink_metadata(path);
    there.is_ok_and(|there| {
        file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    })
}

/// Why a file of the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} ledger {}: {source}", path.display())]
pub struct Error {
    path: PathBuf,
    what: &'static str,
    source: io::Error,
}

impl Error {
    /// For tests of modules that write to a ledger.
    #[cfg(test)]
    pub(crate) fn test(what: &'static str) -> Self {
        Self { path: PathBuf::new(), what, source: io::ErrorKind::Other.into() }
    }
}
