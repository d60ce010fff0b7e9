use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::Error;

/// How long to wait for another holder of the lock. A process that holds the lock longer is stopped. It must not keep others from
/// restoring destinations whose lease has lapsed.
const TURN: Duration = Duration::from_millis(500);

/// The lock that keeps agent, guard and `repair` from changing the IPVS tables at the same time.
#[derive(Debug)]
pub struct IpvsLock {
    _file: Option<Flock<File>>,
}

impl IpvsLock {
    /// Waits for the lock, for half a second at most. After that the caller goes on without it: the holder is stopped, and finds its lease
    /// lapsed when it continues.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take(run_dir: &Path) -> Result<Self, Error> {
        Ok(Self { _file: lock(run_dir, "turn", TURN)? })
    }

    /// Takes the lock for a caller that need not restore anything. `None` where another process holds the lock for half a second.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_or_fail(run_dir: &Path) -> Result<Option<Self>, Error> {
        Ok(lock(run_dir, "turn", TURN)?.map(|file| Self { _file: Some(file) }))
    }
}

/// The end of the name of the lock file that an external guard holds.
const APART: &str = "apart";

/// The end of the name of the file that guards lock that wait for the end of another one.
const WAITS: &str = "waits";

/// Shows that a guard waits for the end of another one. Several may wait at once.
#[derive(Debug)]
pub struct WaitingGuard {
    _file: Flock<File>,
}

impl WaitingGuard {
    /// `None` where another process holds the lock for half a second.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn show(run_dir: &Path) -> Result<Option<Self>, Error> {
        let shown = lock_as(FlockArg::LockSharedNonblock, run_dir, WAITS, TURN)?;
        Ok(shown.map(|file| Self { _file: file }))
    }

    /// Whether a guard waits.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn is_shown(run_dir: &Path) -> Result<bool, Error> {
        Ok(lock(run_dir, WAITS, Duration::ZERO)?.is_none())
    }
}

/// The lock that an agent holds while it lives. A process that gets the lock knows that no agent uses the ledger, not even a stopped one.
#[derive(Debug)]
pub struct OwnerLock {
    file: Flock<File>,
    name: &'static str,
}

impl OwnerLock {
    /// Takes the agent's lock. `None` where another process holds it for longer than `patience`.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Self::named(run_dir, "owner", patience)
    }

    /// Whether the locked file is still the one that other processes find in this run folder.
    pub fn is_in(&self, run_dir: &Path) -> bool {
        super::is_at(&self.file, &path(run_dir, self.name))
    }

    /// Takes the lock of the guard that restores, of which there is one at a time.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_guard(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Self::named(run_dir, "guard", patience)
    }

    /// Takes the lock that an external guard holds while it lives. Beside it an agent's own guard may still be at work, so it is another
    /// lock than that of [`Self::take_guard`].
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_apart(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Self::named(run_dir, APART, patience)
    }

    fn named(run_dir: &Path, name: &'static str, patience: Duration) -> Result<Option<Self>, Error> {
        Ok(lock(run_dir, name, patience)?.map(|file| Self { file, name }))
    }
}

/// Whether an external guard holds its lock in this run folder. The guard may be in a PID namespace of its own, where its process id would
/// say nothing.
pub fn has_guard_apart(run_dir: &Path) -> bool {
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path(run_dir, APART));
    // A shared lock, so that two processes that check at once do not take each other for a guard.
    file.is_ok_and(|file| {
        matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
    })
}

fn path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{}{name}", super::FILES))
}

fn lock(run_dir: &Path, name: &str, patience: Duration) -> Result<Option<Flock<File>>, Error> {
    lock_as(FlockArg::LockExclusiveNonblock, run_dir, name, patience)
}

fn lock_as(
    kind: FlockArg,
    run_dir: &Path,
    name: &str,
    patience: Duration,
) -> Result<Option<Flock<File>>, Error> {
    let path = path(run_dir, name);
    let mut file = open(&path).map_err(|source| Error { path: path.clone(), what: "open", source })?;
    let end = Instant::now() + patience;
    loop {
        match Flock::lock(file, kind) {
            Ok(locked) => return Ok(Some(locked)),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < end => {
                file = back;
                thread::sleep(Duration::from_millis(2));
            }
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => return Ok(None),
            Err((_, errno)) => return Err(Error { path, what: "lock", source: errno.into() }),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)
}
