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

/// How long another holder of the turn is waited for. A holder that keeps it longer is stopped, and must not keep what has lapsed from
/// being restored.
const TURN: Duration = Duration::from_millis(500);

/// Keeps agent, guard and `repair` from changing the tables at the same time.
#[derive(Debug)]
pub struct IpvsLock {
    _file: Option<Flock<File>>,
}

impl IpvsLock {
    /// Waits for the turn, half a second at most: a holder that was stopped meanwhile is passed over, and finds its lease lapsed when it
    /// goes on.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take(run_dir: &Path) -> Result<Self, Error> {
        Ok(Self { _file: lock(run_dir, "turn", TURN)? })
    }

    /// For a caller that has nothing that must be restored: `None` where another process holds the turn for half a second.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_or_fail(run_dir: &Path) -> Result<Option<Self>, Error> {
        Ok(lock(run_dir, "turn", TURN)?.map(|file| Self { _file: Some(file) }))
    }
}

/// The lock file of a guard that was started apart from any agent.
const APART: &str = "apart";

/// Held by an agent while it lives: whoever gets it knows that no agent has a hand in the ledger, not even a stopped one.
#[derive(Debug)]
pub struct Owner {
    file: Flock<File>,
    name: &'static str,
}

impl Owner {
    /// Takes it; `None` where another process has it for longer than `patience`.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Self::named(run_dir, "owner", patience)
    }

    /// Whether its file is still the one that others find in that run folder.
    pub fn is_in(&self, run_dir: &Path) -> bool {
        super::is_at(&self.file, &path(run_dir, self.name))
    }

    /// The same for the guard that restores: one at a time.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_guard(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Self::named(run_dir, "guard", patience)
    }

    /// The same for a guard that was started apart from any agent, for as long as it lives: beside it an agent's own one may be at work still.
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

/// Whether a guard that was started apart holds its lock there. It may be in a PID namespace of its own: a lock tells, a process id would not.
pub fn has_guard_apart(run_dir: &Path) -> bool {
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path(run_dir, APART));
    // Shared, so that two who look do not see each other.
    file.is_ok_and(|file| {
        matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
    })
}

fn path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{}{name}", super::FILES))
}

fn lock(run_dir: &Path, name: &str, patience: Duration) -> Result<Option<Flock<File>>, Error> {
    let path = path(run_dir, name);
    let mut file = open(&path).map_err(|source| Error { path: path.clone(), what: "open it", source })?;
    let end = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(Some(locked)),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < end => {
                file = back;
                thread::sleep(Duration::from_millis(2));
            }
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => return Ok(None),
            Err((_, errno)) => return Err(Error { path, what: "lock it", source: errno.into() }),
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
