//! The cache of kernels and real Kubernetes programs. It outlives runs and clones.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::process;
use crate::say::say;

/// The file with the checksums of a folder of the cache.
const SUMS: &str = "sums";

/// The folder of the cache: `$NODEFENCE_CACHE`, else `nodefence` below the user's cache folder.
pub(crate) fn folder() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("NODEFENCE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("nodefence")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/nodefence")))
        .context("nowhere to cache what tests need: set NODEFENCE_CACHE or HOME")
}

/// Takes the lock file of this path. While another process holds it, prints `busy` once and waits.
pub(crate) fn lock(path: &Path, busy: &str) -> Result<Flock<File>> {
    let mut file = File::create(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut said = false;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EWOULDBLOCK)) => file = back,
            Err((_, error)) => return Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
        if !said {
            say!("{busy}");
            said = true;
        }
        process::check_interrupt()?;
        thread::sleep(Duration::from_millis(200));
    }
}

/// Stores the checksums of these files of a folder. [`is_whole`] then notices a truncated or changed file.
pub(crate) fn seal(folder: &Path, files: &[&str]) -> Result<()> {
    let sums = process::output(process::command("sha256sum").args(files).current_dir(folder))?;
    let path = folder.join(SUMS);
    fs::write(&path, sums).with_context(|| format!("cannot write {}", path.display()))
}

/// Whether all files of a folder have the checksums that [`seal`] stored.
pub(crate) fn is_whole(folder: &Path) -> bool {
    let mut check = process::command("sha256sum");
    check.args(["--check", "--strict", "--status", SUMS]).current_dir(folder);
    folder.join(SUMS).is_file() && process::output(&mut check).is_ok()
}

/// A temporary folder. It is removed when this value is dropped, also when an error or Ctrl-C ends the work in it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

/// The prefix of the names of temporary folders.
pub(crate) const SCRATCH: &str = "scratch-";

impl Scratch {
    /// Makes a temporary folder below `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("{SCRATCH}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _leftover = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_truncated_or_changed_is_not_whole() {
        let scratch = Scratch::new(&env::temp_dir().join("nodefence-xtask-seal")).expect("a folder");
        let folder = scratch.path();
        fs::write(folder.join("one"), "12345678").expect("written");
        fs::write(folder.join("two"), "").expect("written");
        assert!(!is_whole(folder), "nothing was sealed");
        seal(folder, &["one", "two"]).expect("sealed");
        assert!(is_whole(folder));
        for other in ["1234", "12345679"] {
            fs::write(folder.join("one"), other).expect("written");
            assert!(!is_whole(folder), "{other}");
        }
        fs::remove_file(folder.join("one")).expect("there");
        assert!(!is_whole(folder), "removed");
        fs::write(folder.join("one"), "12345678").expect("written");
        assert!(is_whole(folder));
        fs::write(folder.join(SUMS), "").expect("written");
        assert!(!is_whole(folder), "sums of nothing");
    }
}
