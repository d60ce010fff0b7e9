//! The destinations in the IPVS tables that are ours to restore, in a file, so that they outlive the agent: a weight does not lapse by
//! itself.
//!
//! `ledger.log` in the run folder: one line for each step of each destination, written *before* the kernel is told. Nothing is synced
//! to the disk: the file must outlive processes, not the machine, whose tables end with it. It names the boot and the network namespace
//! that it speaks of; in another one it means nothing.
//!
//! One deadline holds for the whole ledger. It is renewed with the verdicts and lies in a pinned map ([`crate::dataplane::lease`]): once it
//! has lapsed everything is restored.

mod file;
mod locks;
mod stored;
#[cfg(test)]
mod tests;

pub use file::{Ledger, Loaded, put_aside};
pub use locks::{IpvsLock, Owner, has_guard_apart};
pub use nodefence_core::ledger::{Entry, Pair, Phase, Record};

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Beginning of the names of all files of this room.
pub const FILES: &str = "ledger.";

/// Whether what lies at `path` is this very file: one that was removed can be written on, and nobody sees it.
fn is_at(file: &File, path: &Path) -> bool {
    let there = fs::symlink_metadata(path);
    there.is_ok_and(|there| {
        file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    })
}

/// A file of the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("ledger {}: {what}: {source}", path.display())]
pub struct Error {
    path: PathBuf,
    what: &'static str,
    source: io::Error,
}

impl Error {
    /// For tests of rooms that write to a ledger.
    #[cfg(test)]
    pub(crate) fn test(why: &'static str) -> Self {
        Self { path: PathBuf::new(), what: why, source: io::ErrorKind::Other.into() }
    }
}
