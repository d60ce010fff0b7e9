//! The task `http`: serves the agent's state over TCP, read only. Its data are those of `status` and `counters`.

use std::{future::pending, net::SocketAddr, path::Path, sync::Arc};

use tokio::sync::watch;

use super::{beat::hangs, newcomer::Newcomers, rows, serve::Requests, threads::Crew};
use crate::{
    flags::monotonic_ns,
    http::{self, Facts, Measured, Snapshot},
    report::Health,
};

/// Starts the task. The port is closed while the agent of another pod waits to take over from the one of this run folder.
pub(super) fn start(address: SocketAddr, facts: impl Facts, run_dir: &Path, crew: &Crew) {
    let (open, is_open) = watch::channel(true);
    let newcomers = Newcomers::of(run_dir);
    if let Err(error) = &newcomers {
        tracing::warn!(event = "newcomers-unseen", %error, "nobody sees whether another agent waits to take over; the HTTP port stays open meanwhile");
    }
    let following = async move {
        match newcomers {
            Ok(newcomers) => newcomers.follow(open).await,
            Err(_) => pending().await,
        }
    };
    let talks = crew.clone();
    let stop = crew.stop();
    crew.task("http", async move {
        let begin = |talk| talks.errand("http", talk);
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
            () = http::serve(address, Arc::new(facts), is_open, begin) => {}
        }
        Ok(())
    });
}

/// Why the agent hangs, by its last sign of life: the rule of the watchdog (`notify`).
pub(super) fn silent_since(lives: u64) -> Option<String> {
    let hangs = hangs(monotonic_ns(), lives);
    hangs.then(|| "the agent stands still, and verdicts have lapsed".to_owned())
}

impl Requests {
    /// Why the agent hangs. `None` if it works.
    pub(super) fn hangs(&self) -> Option<String> {
        silent_since(self.shown.beat.lives())
    }

    /// Why the agent is not ready. `None` if it is ready.
    pub(super) async fn not_ready(&self) -> Option<String> {
        if let Some(why) = self.hangs() {
            return Some(why);
        }
        let shown = Arc::clone(&self.shown);
        let looked = self.crew.blocking("api", move || {
            let status = rows::status(&shown);
            http::not_ready(&status, &Health::of(&status), shown.beat.tables() != 0)
        });
        looked.await.unwrap_or_else(|fallen| Some(fallen.to_string()))
    }

    /// The answers over HTTP.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, String> {
        let shown = Arc::clone(&self.shown);
        let audit_faults = self.audit.faults();
        let read = self.crew.blocking("http", move || {
            let measured = Measured {
                // Without the kernel's counters the other metrics are still good.
                kernel: shown.counters.read().unwrap_or_default(),
                unanswered: shown.injector.unanswered().into(),
                rescue: shown.rescue.tally.get().collect(),
                audit_faults,
                has_tables: shown.beat.tables() != 0,
            };
            Snapshot::of(rows::status(&shown), &measured)
        });
        read.await.map_err(|error| error.to_string())?
    }
}
