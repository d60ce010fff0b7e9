//! One agent at a time: the lock of the run folder.

use std::{
    fs::{self, DirBuilder, File, Metadata, Permissions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::visible;
use crate::{last_view, ledger, off};

/// Why this process may not be the agent.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process is the agent.
    #[error(
        "an agent{} runs on this node already ({} is locked); {advice}",
        pid.map_or_else(String::new, |pid| format!(" (process {pid})")),
        path.display()
    )]
    Busy {
        /// The lock's file.
        path: PathBuf,
        /// The other's process id, where its file says so.
        pid: Option<i32>,
        /// What the operator can do.
        advice: &'static str,
    },
    /// The run folder cannot be used.
    #[error(
        "cannot {what} {}: {source}{}",
        path.display(),
        if self.is_forbidden() { "; run as root" } else { "" }
    )]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// What was tried, in front of the path.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl LockError {
    /// Whether the caller may not use the run folder.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Folder { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// The right to be this node's agent. The right ends when this value is dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
}

/// Something in the folder that no agent put there.
fn stranger(run_dir: &Path) -> Option<String> {
    let names = fs::read_dir(run_dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter(|name| {
            !["agent.", "flags.", last_view::FILES, off::FILES, ledger::FILES]
                .iter()
                .any(|ours| name.starts_with(ours))
        })
        .min()
}

fn at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> LockError {
    let path = path.to_owned();
    move |source| LockError::Folder { path, what, source }
}

/// Makes sure that an existing run folder is this user's own, and closed to others.
///
/// # Errors
/// Where it is not, or others use it too.
pub fn own_folder(run_dir: &Path) -> Result<(), LockError> {
    let meta = fs::metadata(run_dir).map_err(at(run_dir, "look at run folder"))?;
    let user = nix::unistd::geteuid();
    if meta.uid() != user.as_raw() {
        // Root does not use it either: another user may change what lies in it.
        let kind = if user.is_root() { io::ErrorKind::Other } else { io::ErrorKind::PermissionDenied };
        let source = io::Error::new(kind, format!("it belongs to user {}", meta.uid()));
        return Err(at(run_dir, "use run folder")(source));
    }
    if meta.mode() & 0o077 != 0 {
        // A shared folder, /run or /tmp by a slip of the hand, must not be closed to its other users.
        if let Some(other) = stranger(run_dir) {
            let source = io::Error::other(format!(
                "it is open to other users and holds `{other}`, which is not ours (expected a folder of nodefence's own)"
            ));
            return Err(at(run_dir, "use run folder")(source));
        }
        fs::set_permissions(run_dir, Permissions::from_mode(0o700))
            .map_err(at(run_dir, "set the mode of run folder"))?;
    }
    Ok(())
}

impl Lock {
    /// Makes the run folder (0700) where it is missing, and takes the lock in it. `advice` is for whoever finds another
    /// agent there.
    ///
    /// # Errors
    /// [`LockError::Busy`] where another agent has the lock.
    pub fn take(run_dir: &Path, advice: &'static str) -> Result<Self, LockError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(run_dir)
            .map_err(at(run_dir, "make run folder"))?;
        own_folder(run_dir)?;
        let path = run_dir.join("agent.lock");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(at(&path, "open"))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                file.set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| writeln!(file, "{}", std::process::id()))
                    .map_err(at(&path, "write the process id into"))?;
                // For whoever looks without taking. Who cannot see it finds out by taking.
                let _unseen = visible::own(&file);
                Ok(Self { file })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                Err(LockError::Busy { path, pid, advice })
            }
            Err((_, errno)) => Err(at(&path, "lock")(errno.into())),
        }
    }

    /// Whether the locked file is still the one in that folder. A process that finds another file there does not find that file locked.
    pub fn is_in(&self, run_dir: &Path) -> bool {
        let there = fs::metadata(run_dir.join("agent.lock"));
        let is_ours = |there: &Metadata| {
            self.file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        };
        there.is_ok_and(|there| is_ours(&there))
    }

    /// As [`Lock::take`], but waits for the other agent to end. `of`: its process id, where that is known.
    ///
    /// # Errors
    /// [`LockError::Busy`] where it has not ended in that time, or a third one has the lock.
    pub fn wait(
        run_dir: &Path,
        advice: &'static str,
        patience: Duration,
        of: Option<i32>,
    ) -> Result<Self, LockError> {
        let end = Instant::now() + patience;
        let is_third = |pid: Option<i32>| of.is_some() && pid.is_some() && pid != of;
        loop {
            match Self::take(run_dir, advice) {
                Err(LockError::Busy { pid, .. }) if !is_third(pid) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("a/run");
        let lock = Lock::take(&run, "end it").unwrap();
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o700);
        let error = Lock::take(&run, "end it").unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.to_string().ends_with("; end it"), "{error}");
        assert!(Lock::wait(&run, "", Duration::from_millis(20), None).is_err());
        let begun = Instant::now();
        let third = Lock::wait(&run, "", Duration::from_secs(60), Some(1)).unwrap_err();
        assert!(
            matches!(third, LockError::Busy { .. }) && begun.elapsed() < Duration::from_secs(30),
            "{third}"
        );
        assert!(lock.is_in(&run));
        fs::remove_dir_all(&run).unwrap();
        assert!(!lock.is_in(&run));
        let other = Lock::take(&run, "").unwrap();
        assert!(!lock.is_in(&run) && other.is_in(&run));
        drop((lock, other));
        let _lock = Lock::wait(&run, "", Duration::from_millis(20), None).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Lock::take(&file.join("run"), "").unwrap_err();
        assert!(error.to_string().starts_with("cannot make run folder ") && !error.is_forbidden(), "{error}");
    }

    #[test]
    fn root_is_not_told_to_be_root() {
        let dir = tempfile::tempdir().unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
            let error = Lock::take(dir.path(), "").unwrap_err();
            assert!(error.to_string().ends_with("it belongs to user 65534"), "{error}");
        }
    }

    #[test]
    fn who_may_not_use_the_folder_is_told_to_be_root() {
        let error = LockError::Folder {
            path: "/run/x".into(),
            what: "use run folder",
            source: io::ErrorKind::PermissionDenied.into(),
        };
        assert!(error.is_forbidden() && error.to_string().ends_with("; run as root"), "{error}");
    }
}
