//! One owner of a pin folder at a time: two agents that write the same maps would undo each other's verdicts, and a detach
//! below a running agent would strip it.
//!
//! The lock lies on the folder above the versions (`.../nodefence`), since each version takes over and removes the others. The BPF
//! filesystem holds no plain files, but flock(2) takes a folder as well.
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

/// How long an agent that gave up its own lock may take to end: the one that takes over waits for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The right to change what is pinned below a folder. Given up when dropped, or when the process ends in whatever way.
pub(super) struct PinLock {
    _dir: Flock<File>,
}

impl PinLock {
    /// Makes the folder where it is missing, and locks it.
    ///
    /// # Errors
    /// [`Error::Busy`] where somebody else has it for longer than `patience`.
    pub(super) fn take(root: &Path, patience: Duration) -> Result<Self, Error> {
        let end = Instant::now() + patience;
        loop {
            folders::make(root).map_err(Error::file(root, "make the folder"))?;
            match Self::existing(root) {
                Ok(Some(lock)) => return Ok(lock),
                // A detach removed it in between.
                Ok(None) => {}
                Err(Error::Busy { .. }) if Instant::now() < end => sleep(Duration::from_millis(10)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Locks a folder; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Busy`] where somebody else has it.
    pub(super) fn existing(root: &Path) -> Result<Option<Self>, Error> {
        let dir = match File::open(root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            dir => dir.map_err(Error::file(root, "open the folder"))?,
        };
        let locked = dir.metadata().map_err(Error::file(root, "look at the folder"))?;
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(dir) => {
                // Whoever had it may have removed the folder: a lock on what is no longer there keeps nobody away.
                let there =
                    fs::metadata(root).is_ok_and(|m| (m.dev(), m.ino()) == (locked.dev(), locked.ino()));
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

/// The process that holds a flock, from the text of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4711 00:27:39 0 EOF`, device
/// numbers in hexadecimal (fs/locks.c, lock_get_status). Locks of processes that this one's PID namespace does not show are not listed.
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
