//! The task `http`: serves the agent's state over TCP, read only. Its data are those of `status` and `counters`.

use std::sync::Arc;

use tokio::sync::watch;

use super::{audit, beat::hangs, rows, rows::Shown, serve::Requests, threads::Crew};
use crate::{
    flags::monotonic_ns,
    http::{self, Measured, Snapshot},
};

/// The agent's state, as it is served.
struct Facts {
    shown: Arc<Shown>,
    audit: audit::Inbox,
    crew: Crew,
}

/// Starts the task, if the agent is to have a port. Returns the switch that closes and opens the port; without the switch it stays open.
pub(super) fn start(requests: &Requests, crew: &Crew) -> watch::Sender<bool> {
    let (open, is_open) = watch::channel(true);
    if let Some(address) = requests.shown.sight.settings.http {
        let facts =
            Facts { shown: Arc::clone(&requests.shown), audit: requests.audit.clone(), crew: crew.clone() };
        let talks = crew.clone();
        let stop = crew.stop();
        crew.task("http", async move {
            let begin = |talk| talks.errand("http", talk);
            tokio::select! {
                () = stop.cancelled() => {}
                () = http::serve(address, Arc::new(facts), is_open, begin) => {}
            }
            Ok(())
        });
    }
    open
}

impl http::Facts for Facts {
    /// The rule of the watchdog (`notify`).
    fn hangs(&self) -> Option<String> {
        let hangs = hangs(monotonic_ns(), self.shown.beat.lives());
        hangs.then(|| "the thread `verdicts` stands still, and verdicts have lapsed".to_owned())
    }

    async fn read(&self) -> Result<Snapshot, String> {
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
