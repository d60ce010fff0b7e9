//! Carries out the requests that come over the socket.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Semaphore, oneshot, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    adjust, audit, flag_rows, flow_rows,
    follow_up::Progress,
    idle,
    inbox::{Command, Inbox, NoAnswer},
    looks::Looks,
    notes::{Note, left_meanwhile},
    off::Switch,
    readiness,
    records::{flagged, unflagged},
    refusals::{failure, save_warning},
    rows::{self, Shown},
    threads::Crew,
    who,
};
use crate::{
    cluster::NodeName,
    enforce::{Change, Changed, ClaimSource, Done, Input, NewClaim, SaveState},
    flags::monotonic_ns,
    off::Off,
    report::{ChallengeRow, Failure, FlagReport, Handler, Peer, Reply, Request, UnflagReport},
};

/// How long a `flag` that is to wait for the round of challenges waits before it answers without the outcome.
const WAIT_FOR_CHALLENGE: Duration = Duration::from_secs(45);
/// How long a `flag` that is not to wait for the end of the round waits until each flow was challenged once.
const WAIT_FOR_COUNT: Duration = Duration::from_millis(500);
/// How long a `flag` of the own node waits at most until its pods' devices are attached: the task that attaches may stand still. The
/// verdict waits for these devices as long again.
const OWN_LOOK: Duration = Duration::from_secs(1);
/// How often a `flag` that waits looks whether its claim is still there.
const LOOK_AT_CLAIM: Duration = Duration::from_millis(100);
/// How many commands wait for the end of a round of challenges at once. The others return as without `--wait`, so that the socket has places
/// left for `unflag` and `status`.
pub(super) const WAITERS: usize = 16;
/// How long to wait for an audit or a repair. The client gives up sooner, and each request that waits takes one of the socket's places.
const ANSWERED: Duration = Duration::from_secs(60);
/// How many uncovered backends a `flag` names.
const NAMED: usize = 20;

/// The wishes of an operator who flags a node.
struct Flag {
    node: NodeName,
    lasts: Option<Duration>,
    reason: String,
    force: bool,
    /// The requester, in words.
    by: String,
}

/// Carries out the requests from the socket.
pub(super) struct Requests {
    /// The state that answers show.
    pub(super) shown: Arc<Shown>,
    /// The thread that changes claims.
    pub(super) verdicts: Arc<Inbox>,
    /// The task that looks at devices.
    pub(super) looks: Arc<Looks>,
    /// The thread that watches the tables.
    pub(super) audit: audit::Inbox,
    pub(super) crew: Crew,
    /// The places of the commands that wait for the end of a round: [`WAITERS`] of them.
    pub(super) waiters: Semaphore,
    /// Turns the agent off.
    pub(super) switch: Switch,
    /// Cancelled once another agent takes over.
    pub(super) handed_over: CancellationToken,
}

impl Requests {
    /// Asks `verdicts` for something on a node.
    async fn ask(&self, command: Command, node: &str) -> Result<Done, Failure> {
        let answer = self.verdicts.ask(command).map_err(Failure::failed)?;
        let answer = answer.await.map_err(|_| Failure::failed(NoAnswer::Ended))?;
        answer.map_err(|refusal| failure(&refusal, node, self.shown.sight.world().view.source))
    }

    /// Answers once the verdict is written and the claim lies on the disk, or the disk has hung for a second; with `wait` once the idle
    /// clients were challenged. `received` is when the request was read.
    async fn flag(&self, flag: Flag, wait: bool, received: Instant) -> Result<FlagReport, Failure> {
        // Instant is CLOCK_MONOTONIC too, but does not show its number.
        let received_ns = monotonic_ns().saturating_sub(received.elapsed().as_nanos() as u64);
        let Flag { node, lasts, reason, force, by } = flag;
        let own = force && node == self.shown.sight.own_node;
        // The pods' devices are attached before the verdict, so that packets after the verdict are cut.
        let reaches_own = own.then(|| self.looks.reach_own());
        if own {
            let looks = Arc::clone(&self.looks);
            self.blocking(move |_| looks.look(OWN_LOOK)).await?;
        }
        let progress = self.shown.follow_up.request(&node);
        let claim = NewClaim {
            source: ClaimSource::Cli,
            by: by.as_str().into(),
            reason: reason.as_str().into(),
            evidence: None,
            lasts,
            until: None,
        };
        let raised = Command::Claim(node.clone(), Change::Raise { claim, force });
        let done = self.ask(raised, &node).await?;
        drop(reaches_own);
        flagged(&node, &by, &reason, lasts);
        let replaced = match done.changed {
            Changed::Raised { before } => before,
            Changed::Withdrawn { .. } | Changed::HandedOver => None,
        };
        let not_challenged = idle::pointless(&self.shown.sight);
        let Progress { row, ended, .. } = match not_challenged {
            Some(_) => Progress { ended: true, ..Progress::default() },
            None => self.progress(&node, progress, wait).await,
        };
        let mut warnings: Vec<String> = save_warning(&done.saved).into_iter().collect();
        // Only now: the flag may have been withdrawn, or the mode changed, meanwhile.
        let mut report = flag_rows::flag_report(&self.shown.sight, &node, lasts, replaced.as_ref(), NAMED)
            .ok_or_else(|| left_meanwhile(&node, self.shown.sight.world().view.source))?;
        report.received_ns = received_ns;
        report.by = by;
        report.new_refused = self.shown.rescue.row().idle;
        match done.written {
            Some(written) => report.flip_micros = written.saturating_sub(received_ns) / 1_000,
            None => report.written = false,
        }
        report.beyond_maps = self.shown.rows.tables.borrow().report.left_out;
        report.not_challenged = not_challenged.map(str::to_owned);
        report.established = row.as_ref().and_then(ChallengeRow::established);
        report.challenged = row;
        report.challenging = !ended;
        warnings.append(&mut report.warnings);
        report.warnings = warnings;
        Ok(report)
    }

    /// Waits for the round of challenges: with `wait` for its end, else until each flow was challenged once. Returns how far it came in time.
    async fn progress(
        &self,
        node: &NodeName,
        mut progress: watch::Receiver<Progress>,
        wait: bool,
    ) -> Progress {
        let place = if wait { self.waiters.try_acquire().ok() } else { None };
        let limit = if place.is_some() { WAIT_FOR_CHALLENGE } else { WAIT_FOR_COUNT };
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let came = progress.wait_for(|progress| progress.ended || place.is_none() && progress.challenged);
            let came = timeout(left.min(LOOK_AT_CLAIM), came).await.map(|came| came.is_ok());
            let last = progress.borrow().clone();
            match came {
                Ok(true) => return last,
                Ok(false) => return Progress { ended: true, ..last },
                // No round comes where the flag was withdrawn before it began.
                Err(_) if !self.shown.sight.world().is_claimed(node) => {
                    return Progress { ended: true, ..last };
                }
                Err(_) if left <= LOOK_AT_CLAIM => return last,
                Err(_) => {}
            }
        }
    }

    async fn unflag(&self, node: String) -> Result<UnflagReport, Failure> {
        let withdrawn = Command::Claim(node.as_str().into(), Change::Withdraw(ClaimSource::Cli));
        let done = self.ask(withdrawn, &node).await?;
        let was_flagged = matches!(done.changed, Changed::Withdrawn { was: true });
        let mut warnings = Vec::new();
        if was_flagged {
            unflagged(&node);
            warnings.extend(match &done.saved {
                SaveState::Late => Some(Note::FlagIsStored.to_string()),
                saved => save_warning(saved),
            });
        }
        Ok(flag_rows::unflag_report(&self.shown.sight, node, was_flagged, warnings))
    }

    /// The requester, in words.
    async fn who(&self, peer: Peer, sudo_user: Option<String>) -> Result<String, Failure> {
        who::of(&self.crew, peer, sudo_user).await
    }

    /// Runs work that may block, on a thread of its own.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shown) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let shown = Arc::clone(&self.shown);
        self.crew.blocking("api", move || work(&shown)).await.map_err(Failure::failed)
    }
}

/// Waits for the answer to a request.
async fn answered<T>(asked: Result<oneshot::Receiver<T>, impl Display>) -> Result<T, Failure> {
    let answer = asked.map_err(Failure::failed)?;
    let answer = timeout(ANSWERED, answer).await.map_err(|_| Failure::failed(NoAnswer::StandsStill))?;
    answer.map_err(|_| Failure::failed(NoAnswer::Ended))
}

impl Handler for Requests {
    async fn handle(&self, request: Request, peer: Peer) -> Reply {
        let begun = Instant::now();
        match request {
            Request::Flag { node, for_ms, reason, force, wait, sudo_user } => {
                let by = match self.who(peer, sudo_user).await {
                    Ok(by) => by,
                    Err(failure) => return Reply::Error(failure),
                };
                let lasts = for_ms.map(Duration::from_millis);
                let flag = Flag { node: node.into(), lasts, reason, force, by };
                self.flag(flag, wait, begun).await.into()
            }
            Request::Unflag { node } => self.unflag(node).await.into(),
            Request::Nodes => self.blocking(|shown| rows::nodes(&shown.sight)).await.into(),
            Request::Backends => self.blocking(|shown| rows::backends(&shown.sight)).await.into(),
            Request::Flows(filter) => self
                .blocking(move |shown| flow_rows::flows(&shown.sight.world(), &shown.reader, &filter))
                .await
                .and_then(|rows| rows)
                .into(),
            Request::Counters => self.blocking(rows::counters).await.and_then(|rows| rows).into(),
            Request::Status => self.blocking(rows::status).await.into(),
            Request::Ready { pod_uid } => {
                let own = self.shown.sight.settings.pod_uid.as_deref();
                readiness::answer(own, pod_uid.as_deref(), self.not_ready().await).into()
            }
            Request::Audit => answered(self.audit.report()).await.into(),
            Request::Repair { kinds, dry_run } => {
                let kinds = kinds.into_iter().collect();
                answered(self.audit.repair(kinds, dry_run)).await.into()
            }
            Request::Mode { mode, sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => adjust::mode(&self.shown, &self.verdicts, mode, by).await.into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::LogLevel { level, sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => adjust::log_level(&self.shown.sight.settings.log, level, by).into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::Off { reason, sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => self.switch.off(Off::now(by, reason)).await.into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::On { sudo_user } => match self.who(peer, sudo_user).await {
                Ok(by) => self.switch.on(by).await.into(),
                Err(failure) => Reply::Error(failure),
            },
            Request::HandOver => {
                let handed = self.ask(Command::HandOver, &self.shown.sight.own_node).await;
                handed.map(|_| std::process::id()).into()
            }
        }
    }

    /// The agent ends once the answer is on its way, and goes on where nobody takes over.
    fn handed_over(&self, heard: bool) {
        if heard {
            self.handed_over.cancel();
        } else {
            self.verdicts.tell(Input::HandOverUnheard);
        }
    }
}
