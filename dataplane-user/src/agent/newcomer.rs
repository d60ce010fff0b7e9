//! How the agent of a new pod announces itself to the agent that runs, long before it takes over.
//!
//! A newcomer locks the file `agent.next` in the run folder. The kernel gives the lock back when the newcomer ends in any way. The agent that runs
//! looks whether the file is locked, and closes its HTTP port meanwhile: two pods on the network of one node cannot both have it.

use std::{fs::File, io, os::unix::fs::OpenOptionsExt as _, path::Path, time::Duration};

use nix::{errno::Errno, libc};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    pods::{self, PodsError},
    settings::Settings,
    visible,
};

const FILE: &str = "agent.next";

/// How often the agent that runs looks for a newcomer.
const LOOK: Duration = Duration::from_millis(250);
/// How long the port stays closed after the newcomer is gone: a container that ended is soon started again.
const GONE: Duration = Duration::from_secs(5);

fn open(run_dir: &Path) -> io::Result<File> {
    // O_NONBLOCK: opening a pipe that has no writer must not hang.
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).custom_flags(libc::O_NONBLOCK).open(run_dir.join(FILE))
}

/// Removes the file that newcomers lock.
///
/// # Errors
/// Where it cannot be removed.
pub fn remove_announcement(run_dir: &Path) -> Result<(), PodsError> {
    pods::remove(run_dir.join(FILE))
}

/// Held by a newcomer until it has the lock of the run folder.
#[derive(Debug)]
pub(super) struct Announcement {
    _file: File,
}

impl Announcement {
    /// Tells the agent that runs that this one waits. An agent in no pod tells nothing: the other one goes on as it is until it hands over.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        settings.pod_uid.as_ref()?;
        let made = Self::make(&settings.run_dir);
        if let Err(error) = &made {
            tracing::warn!(event = "not-announced", %error, "the agent that runs keeps its HTTP port until it hands over");
        }
        made.ok()
    }

    /// Locks the file.
    ///
    /// # Errors
    /// Where the file cannot be opened or locked.
    pub(super) fn make(run_dir: &Path) -> io::Result<Self> {
        let file = open(run_dir)?;
        // Several newcomers may wait at once.
        visible::share(&file)?;
        Ok(Self { _file: file })
    }
}

/// Sees newcomers, for the agent that runs.
#[derive(Debug)]
pub(super) struct Newcomers {
    file: File,
}

impl Newcomers {
    /// # Errors
    /// Where the file cannot be opened.
    pub(super) fn of(run_dir: &Path) -> io::Result<Self> {
        Ok(Self { file: open(run_dir)? })
    }

    /// Whether a newcomer waits.
    pub(super) fn waits(&self) -> Result<bool, Errno> {
        visible::is_locked(&self.file)
    }

    /// Closes what `open` opens while a newcomer waits, and for a while after it is gone.
    pub(super) async fn follow(self, open: watch::Sender<bool>) {
        let mut is_open = true;
        let mut seen: Option<Instant> = None;
        loop {
            // Where nobody can look, the port stays open.
            if self.waits().unwrap_or(false) {
                seen = Some(Instant::now());
            }
            let wanted = seen.is_none_or(|seen| seen.elapsed() >= GONE);
            if wanted != is_open {
                is_open = wanted;
                if is_open {
                    tracing::info!(
                        event = "newcomer-gone",
                        "the newcomer is gone; this agent goes on, and opens its HTTP port again"
                    );
                } else {
                    tracing::info!(
                        event = "newcomer",
                        "another agent is about to take over; this one closes its HTTP port"
                    );
                }
                open.send_replace(is_open);
            }
            sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_is_seen_for_as_long_as_it_waits() {
        let folder = tempfile::tempdir().unwrap();
        let newcomers = Newcomers::of(folder.path()).unwrap();
        assert_eq!(newcomers.waits(), Ok(false));
        let first = Announcement::make(folder.path()).unwrap();
        let second = Announcement::make(folder.path()).unwrap();
        assert_eq!(newcomers.waits(), Ok(true));
        drop(first);
        assert_eq!(newcomers.waits(), Ok(true));
        drop(second);
        assert_eq!(newcomers.waits(), Ok(false));
        let again = Announcement::make(folder.path()).unwrap();
        assert_eq!(newcomers.waits(), Ok(true));
        drop(again);
    }

    #[test]
    fn the_file_can_be_removed_where_it_is_there_or_not() {
        let folder = tempfile::tempdir().unwrap();
        drop(Announcement::make(folder.path()).unwrap());
        remove_announcement(folder.path()).unwrap();
        assert!(!folder.path().join(FILE).exists());
        remove_announcement(folder.path()).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        Announcement::make(folder.path()).unwrap_err();
        Newcomers::of(folder.path()).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn the_port_is_closed_while_a_newcomer_waits_and_opens_again_five_seconds_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let (open, mut is_open) = watch::channel(true);
        let newcomers = Newcomers::of(folder.path()).unwrap();
        let test = async {
            let newcomer = Announcement::make(folder.path()).unwrap();
            let begun = Instant::now();
            is_open.wait_for(|open| !open).await.unwrap();
            assert!(begun.elapsed() <= 2 * LOOK);
            sleep(Duration::from_secs(60)).await;
            assert!(!*is_open.borrow());
            drop(newcomer);
            let gone = Instant::now();
            sleep(Duration::from_secs(4)).await;
            // Its container is started again.
            let again = Announcement::make(folder.path()).unwrap();
            sleep(Duration::from_secs(3)).await;
            assert!(!*is_open.borrow() && gone.elapsed() > GONE);
            drop(again);
            let gone = Instant::now();
            is_open.wait_for(|open| *open).await.unwrap();
            assert!((4..=6).contains(&gone.elapsed().as_secs()), "{:?}", gone.elapsed());
        };
        tokio::select! {
            () = newcomers.follow(open) => panic!("it ended"),
            () = test => {}
        }
    }
}
