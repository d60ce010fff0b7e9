//! What an agent that is off answers.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{switch::Switch, undo::Undone};
use crate::{
    agent::{adjust, beat::Beat, http::silent_since, readiness, settings::Settings, threads::Crew, who},
    flags::{FlagStore, now},
    http::Snapshot,
    off::Off,
    report::{ErrorKind, Failure, Handler, OffKind, OffRow, OffState, OffStatus, Peer, Reply, Request},
};

/// How long the flags file may take to be read: the disk may hang.
const READ: Duration = Duration::from_secs(1);

/// Answers requests while the agent is off.
pub(in crate::agent) struct OffRequests {
    pub(super) row: watch::Receiver<OffRow>,
    pub(super) undone: watch::Receiver<Undone>,
    pub(super) settings: Arc<Settings>,
    /// Whether the settings in the API server turn the agent off, too.
    pub(super) by_settings: watch::Receiver<bool>,
    pub(super) crew: Crew,
    pub(super) switch: Switch,
    pub(super) beat: Arc<Beat>,
    pub(super) started: Timestamp,
    pub(super) handed_over: CancellationToken,
}

impl OffRequests {
    async fn status(&self) -> OffStatus {
        let flags = flags(&self.settings, &self.crew).await;
        let row = self.row.borrow().clone();
        let Undone { taken_back, problems, .. } = self.undone.borrow().clone();
        let done = match (taken_back, problems.is_empty()) {
            (true, true) => "nothing of ours is attached, nothing is cut",
            (false, true) => "what the agent did is being taken back",
            (_, false) => "nothing is cut, but not all could be taken back",
        };
        OffStatus {
            state: OffState::Off,
            why: format!("{}; {done}; {}", row.text(), self.end(&row)),
            off: row,
            taken_back,
            problems,
            flags,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
        }
    }

    /// How the off state ends.
    fn end(&self, row: &OffRow) -> String {
        let ends = row.end();
        let by_settings = *self.by_settings.borrow();
        match row.kind {
            OffKind::Node if by_settings => {
                format!("{ends} once {} do not turn it off, too", OffRow::SETTINGS)
            }
            OffKind::Settings if !by_settings => {
                format!("{} turn it off no more, and it is about to start", OffRow::SETTINGS)
            }
            OffKind::Node | OffKind::Settings => ends.to_owned(),
        }
    }

    /// Why the agent hangs. `None` if it works.
    pub(super) fn hangs(&self) -> Option<String> {
        silent_since(self.beat.lives())
    }

    /// The answers over HTTP.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, String> {
        Snapshot::of_off(&self.status().await, self.settings.log.lost())
    }

    fn refuse(&self) -> Reply {
        let row = self.row.borrow().clone();
        let message = format!("the agent is {}; {}", row.text(), self.end(&row));
        Reply::Error(Failure::new(ErrorKind::Refused, message))
    }

    async fn who(&self, peer: Peer, sudo_user: Option<String>) -> Result<String, Failure> {
        who::of(&self.crew, peer, sudo_user).await
    }
}

/// How many flags are stored. `None` where the file cannot be read, or the disk hangs.
pub(super) async fn flags(settings: &Settings, crew: &Crew) -> Option<usize> {
    let store = FlagStore::new(&settings.run_dir);
    timeout(READ, crew.blocking("api", move || store.count(now()))).await.ok()?.ok()?
}

impl Handler for OffRequests {
    async fn handle(&self, request: Request, peer: Peer) -> Reply {
        match request {
            Request::Status | Request::Mode { mode: None, .. } => Reply::ok(&self.status().await),
            Request::Ready { pod_uid } => {
                readiness::answer(self.settings.pod_uid.as_deref(), pod_uid.as_deref(), self.hangs()).into()
            }
            Request::Off { reason, sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => self.switch.off(Off::now(by, reason)).await.into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::On { sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => self.switch.on(by).await.into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::LogLevel { level, sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => adjust::log_level(&self.settings.log, level, by).into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::HandOver => Reply::ok(&std::process::id()),
            Request::Flag { .. }
            | Request::Unflag { .. }
            | Request::Nodes
            | Request::Backends
            | Request::Flows(_)
            | Request::Counters
            | Request::Audit
            | Request::Repair { .. }
            | Request::Mode { mode: Some(_), .. } => self.refuse(),
        }
    }

    fn handed_over(&self, heard: bool) {
        if heard {
            self.handed_over.cancel();
        }
    }
}
