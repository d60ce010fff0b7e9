//! Carries out the requests that come over the socket.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{audit, core::Core, idle, network, rows};
use crate::{
    cluster::NodeName,
    flags::monotonic_ns,
    report::{AskRow, ErrorKind, Failure, FlagReport, Handler, Reply, Request, UnflagReport},
};

/// How long a `flag` that is to wait for the round of asking does so before it answers without its outcome.
const WAIT_FOR_ASKING: Duration = Duration::from_secs(45);
/// How long a `flag` waits until the flags file lies on the disk: a disk that hangs must not make the operator wait.
const WAIT_FOR_FILE: Duration = Duration::from_secs(1);
/// How many uncovered backends a `flag` names.
const NAMED: usize = 20;

/// What an operator wants of a `flag`.
struct Flag {
    node: NodeName,
    lasts: Option<Duration>,
    reason: String,
    force: bool,
}

/// Carries out what comes over the socket.
pub(super) struct Desk {
    core: Arc<Core>,
    stop: CancellationToken,
}

impl Desk {
    pub(super) fn new(core: Arc<Core>, stop: CancellationToken) -> Self {
        Self { core, stop }
    }

    /// Answers as soon as the verdict is written, with `wait` once the idle clients were asked. `received` is when the request
    /// was read.
    async fn flag(&self, flag: Flag, wait: bool, received: Instant) -> Result<FlagReport, Failure> {
        let Flag { node, lasts, reason, force } = flag;
        if force && node == self.core.own_node {
            // Before the verdict, so that what comes after it is cut.
            self.blocking(|core| {
                core.state().covers_own = true;
                network::refresh(core);
            })
            .await?;
        }
        let flagged = self.core.flag(&node, lasts, &reason, force, received);
        if node == self.core.own_node {
            self.core.state().covers_own = false;
            // A look that had begun before may have forgotten its pods again.
            self.core.view_changed.notify_one();
        }
        let (took, replaced) = flagged?;
        let asking = self.ask(&node);
        let mut warnings = Vec::new();
        match timeout(WAIT_FOR_FILE, self.blocking(|core| core.save_flags())).await {
            Ok(problem) => warnings.extend(problem?),
            Err(_) => warnings.push(
                "the flags file is still being written: until then the flag does not survive the agent"
                    .into(),
            ),
        }
        let mut report = rows::flag_report(&self.core, &node, lasts, replaced.as_ref(), NAMED)
            .ok_or_else(|| Failure::failed(format_args!("`{node}` left the cluster file meanwhile")))?;
        // Instant is CLOCK_MONOTONIC too, but does not show its number.
        report.received_ns = monotonic_ns().saturating_sub(received.elapsed().as_nanos() as u64);
        report.flip_micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        warnings.append(&mut report.warnings);
        match asking {
            Err(why) => warnings.push(format!("idle clients are not asked: {why}")),
            Ok(_) if !wait => report.asking = true,
            Ok(asking) => match timeout(WAIT_FOR_ASKING, asking).await {
                Ok(asked) => report.asked = asked.map_err(Failure::failed)?,
                Err(_) => {
                    report.asking = true;
                    warnings.push("idle clients are still being asked; see `nodefence status`".into());
                }
            },
        }
        if let Some(problem) = report.asked.as_ref().and_then(|asked| asked.problem.as_ref()) {
            warnings.push(format!("idle clients: {problem}"));
        }
        report.warnings = warnings;
        Ok(report)
    }

    /// Begins to let go what is pinned to a node and to ask its idle clients; it goes on though nobody waits for it.
    ///
    /// # Errors
    /// Why there is no point in asking.
    fn ask(&self, node: &NodeName) -> Result<JoinHandle<Option<AskRow>>, &'static str> {
        let asking = tokio::spawn(idle::ask_for_request(Arc::clone(&self.core), node.clone()));
        idle::pointless(&self.core).map_or(Ok(asking), Err)
    }

    async fn unflag(&self, node: String) -> Result<UnflagReport, Failure> {
        let unflagged = self.core.unflag(&node);
        let mut warnings = Vec::new();
        // The flag is gone also where the verdict could not be taken back.
        let gone = match &unflagged {
            Ok(was_flagged) => *was_flagged,
            Err(failure) => failure.kind == ErrorKind::Failed,
        };
        if gone {
            warnings.extend(self.blocking(|core| core.save_flags()).await?);
        }
        let was_flagged = unflagged?;
        Ok(rows::unflag_report(&self.core, node, was_flagged, warnings))
    }

    /// Runs what may block on a thread of its own.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let core = Arc::clone(&self.core);
        let blocking = tokio::task::spawn_blocking(move || {
            let _or_end = core.or_end();
            work(&core)
        });
        blocking.await.map_err(Failure::failed)
    }
}

impl Handler for Desk {
    async fn handle(&self, request: Request) -> Reply {
        let begun = Instant::now();
        let _or_end = self.core.or_end();
        match request {
            Request::Flag { node, for_ms, reason, force, wait } => {
                let lasts = for_ms.map(Duration::from_millis);
                let flag = Flag { node: node.into(), lasts, reason, force };
                self.flag(flag, wait, begun).await.into()
            }
            Request::Unflag { node } => self.unflag(node).await.into(),
            Request::Nodes => self.blocking(rows::nodes).await.into(),
            Request::Backends => self.blocking(rows::backends).await.into(),
            Request::Flows { node } => self
                .blocking(move |core| rows::flows(core, node.as_deref()))
                .await
                .and_then(|rows| rows)
                .into(),
            Request::Counters => self.blocking(rows::counters).await.and_then(|rows| rows).into(),
            Request::Status => self.blocking(rows::status).await.into(),
            Request::Audit => self.blocking(audit::report).await.into(),
            Request::Repair { kinds, dry_run } => {
                let kinds = kinds.into_iter().collect();
                self.blocking(move |core| audit::repair(core, &kinds, dry_run)).await.into()
            }
            Request::HandOver => {
                let saved = self.blocking(|core| core.hand_over()).await;
                if let Ok(Some(problem)) = saved {
                    return Reply::Error(Failure::failed(problem));
                }
                // The answer is on its way before anything ends.
                let stop = self.stop.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    stop.cancel();
                });
                Reply::ok(&std::process::id())
            }
        }
    }
}
