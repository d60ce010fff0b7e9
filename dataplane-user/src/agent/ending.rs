//! How an agent ends, whether it runs or is off.

use std::{path::Path, time::Duration};

use super::lock::Lock;
use crate::report::Server;

/// How often to look whether somebody removed the socket or the run folder.
const LOOK_FOR_FILES: Duration = Duration::from_secs(1);
/// How long tasks may take to end in order.
pub(super) const WIND_UP: Duration = Duration::from_secs(1);

/// The advice where another agent runs.
pub(super) const ADVICE: &str = "end it, or start this one with --take-over";

/// What follows the agent's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing: the process ends.
    Over,
    /// The same: another agent took over. An agent of a pod stands by until it is told to end.
    HandedOver,
    /// The same program is to run in this process anew: the agent was turned on, or off before it ran.
    Anew,
}

/// Why an agent ends, or a start ends before the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A signal came: its name.
    Signal(&'static str),
    /// Another agent takes the place of this one.
    TakenOver,
    /// Somebody turned the agent off before it ran: a command that finds no socket writes the file itself.
    TurnedOff,
    /// The settings in the API server turned the agent off before it ran.
    OffBySettings,
}

impl Reason {
    /// The reason in words.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Signal(name) => name,
            Self::TakenOver => "another agent takes over",
            Self::TurnedOff => "`nodefence off`",
            Self::OffBySettings => "the settings in the API server",
        }
    }

    /// What follows.
    pub(super) const fn then(self) -> Ended {
        match self {
            Self::Signal(_) => Ended::Over,
            Self::TakenOver => Ended::HandedOver,
            // The next start finds the file, or the settings.
            Self::TurnedOff | Self::OffBySettings => Ended::Anew,
        }
    }
}

/// Whether somebody removed the socket, or the run folder with the lock.
pub(super) fn is_lost(server: &Server, lock: &Lock, run_dir: &Path) -> bool {
    !(server.is_there() && lock.is_in(run_dir))
}

/// Returns once somebody removed the socket or the run folder.
pub(super) async fn lost(server: &Server, lock: &Lock, run_dir: &Path) {
    while !is_lost(server, lock, run_dir) {
        tokio::time::sleep(LOOK_FOR_FILES).await;
    }
}
