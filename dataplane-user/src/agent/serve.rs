use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{core::Core, idle, rows};
use crate::{
    flags::monotonic_ns,
    report::{Failure, FlagReport, Handler, Reply, Request, UnflagReport},
};

/// How long a `flag` waits for the round of asking before it answers without its outcome.
const WAIT_FOR_ASKING: Duration = Duration::from_secs(3);
/// How many uncovered backends a `flag` names.
const NAMED: usize = 20;

/// Carries out what comes over the socket.
pub(super) struct Desk {
    core: Arc<Core>,
    stop: CancellationToken,
}

impl Desk {
    pub(super) fn new(core: Arc<Core>, stop: CancellationToken) -> Self {
        Self { core, stop }
    }

    async fn flag(
        &self,
        node: String,
        lasts: Option<Duration>,
        reason: String,
        force: bool,
        begun: Instant,
    ) -> Result<FlagReport, Failure> {
        let took = self.core.flag(&node, lasts, &reason, force, begun)?;
        let mut warnings: Vec<String> = self.blocking(|core| core.save_flags()).await?.into_iter().collect();
        let mut report = rows::flag_report(&self.core, &node, lasts, NAMED)
            .ok_or_else(|| Failure::failed(format_args!("`{node}` left the cluster file meanwhile")))?;
        // Instant is CLOCK_MONOTONIC too, but does not show its number.
        report.received_ns = monotonic_ns().saturating_sub(begun.elapsed().as_nanos() as u64);
        report.flip_micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        warnings.append(&mut report.warnings);
        match idle::pointless(&self.core, &node) {
            Some(why) => warnings.push(format!("idle clients are not asked: {why}")),
            None => {
                let (core, asked) = (Arc::clone(&self.core), node.clone());
                let asking = tokio::task::spawn_blocking(move || idle::ask(&core, &asked));
                match timeout(WAIT_FOR_ASKING, asking).await {
                    Ok(asked) => report.asked = asked.map_err(Failure::failed)?,
                    Err(_) => {
                        warnings.push("idle clients are still being asked; see `nodefence status`".into())
                    }
                }
            }
        }
        if let Some(problem) = report.asked.as_ref().and_then(|asked| asked.problem.as_ref()) {
            warnings.push(format!("idle clients: {problem}"));
        }
        report.warnings = warnings;
        Ok(report)
    }

    async fn unflag(&self, node: String) -> Result<UnflagReport, Failure> {
        let was_flagged = self.core.unflag(&node)?;
        let mut warnings = Vec::new();
        if was_flagged {
            warnings.extend(self.blocking(|core| core.save_flags()).await?);
        }
        Ok(rows::unflag_report(&self.core, node, was_flagged, warnings))
    }

    /// Runs what may block on a thread of its own.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let core = Arc::clone(&self.core);
        tokio::task::spawn_blocking(move || work(&core)).await.map_err(Failure::failed)
    }
}

impl Handler for Desk {
    async fn handle(&self, request: Request) -> Reply {
        let begun = Instant::now();
        match request {
            Request::Flag { node, for_ms, reason, force } => {
                let lasts = for_ms.map(Duration::from_millis);
                self.flag(node, lasts, reason, force, begun).await.into()
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
            Request::HandOver => {
                let saved = self.blocking(|core| core.save_flags()).await;
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
