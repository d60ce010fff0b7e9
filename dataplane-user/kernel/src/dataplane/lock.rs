//! Gives a pin folder one owner at a time. Two agents that write the same maps would undo each other's verdicts, and a detach would remove
//! the programs of a running agent.
//!
//! The lock is on the folder above the versions (`.../nodefence`), since each version takes over and removes the others. The BPF filesystem
//! has no plain files, but flock(2) locks a folder as well.
use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use libc::{major, minor};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::{error::Error, folders};

/// How long the next agent waits for this lock. The previous agent may take that long to end after it gave up the lock of its run folder.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The right to change what is pinned below a folder. The right ends when this value is dropped, or when the process ends in any way.
pub(super) struct PinLock {
    _dir: Flock<File>,
}

impl PinLock {
    /// Makes the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process holds the lock for longer than `patience`.
    pub(super) fn take(root: &Path, patience: Duration) -> Result<Self, Error> {
        let end = Instant::now() + patience;
        loop {
            folders::make(root).map_err(Error::file(root, "make the folder"))?;
            match Self::existing(root) {
                Ok(Some(lock)) => return Ok(lock),
                // A detach removed the folder in between.
                Ok(None) => {}
                Err(Error::Busy { .. }) if Instant::now() < end => sleep(Duration::from_millis(10)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Locks a folder. `None` if there is no such folder.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process holds the lock.
    pub(super) fn existing(root: &Path) -> Result<Option<Self>, Error> {
        let dir = match File::open(root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            dir => dir.map_err(Error::file(root, "open the folder"))?,
        };
        let locked = dir.metadata().map_err(Error::file(root, "look at the folder"))?;
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(dir) => {
                // The previous owner may have removed the folder. A lock on a removed folder excludes nobody.
                let there = fs::metadata(root)
                    .is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino()));
                Ok(there.then_some(Self { _dir: dir }))
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
                let pid = holder(&locks, locked.dev(), locked.ino());
                Err(Error::Busy { root: root.to_owned(), pid })
            }
            Err((_, errno)) => Err(Error::file(root, "lock the folder")(errno.into())),
        }
    }
}

/// The process that holds a flock, by the text of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4711 00:27:39 0 EOF`. Device numbers are in
/// hexadecimal (lock_get_status, fs/locks.c). Locks of processes outside of this process' PID namespace are not listed.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok().filter(|pid| *pid != 0),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use libc::makedev;

    use super::*;

    #[test]
    fn the_holder_is_read_from_the_kernels_list() {
        let locks = "1: FLOCK  ADVISORY  WRITE 21567 00:27:7713442 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 21568 00:27:7713442 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 99 00:27:5 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 00:27:6 0 EOF\n";
        let device = makedev(0, 0x27);
        assert_eq!(holder(locks, device, 7_713_442), Some(21_567));
        for inode in [5, 6, 7] {
            assert_eq!(holder(locks, device, inode), None);
        }
        assert_eq!(holder(locks, makedev(0, 0x28), 7_713_442), None);
    }

    #[test]
    fn one_at_a_time_and_a_removed_folder_counts_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/nodefence");
        assert!(PinLock::existing(&root).unwrap().is_none());
        let lock = PinLock::take(&root, Duration::ZERO).unwrap();
        let error = PinLock::existing(&root).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::Busy { .. }), "{text}");
        assert!(text.contains(root.to_str().unwrap()), "{text}");
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        fs::remove_dir(&root).unwrap();
        let next = PinLock::take(&root, Duration::ZERO).unwrap();
        drop(lock);
        assert!(PinLock::take(&root, Duration::from_millis(20)).is_err());
        drop(next);
        PinLock::existing(&root).unwrap().unwrap();
    }
}
