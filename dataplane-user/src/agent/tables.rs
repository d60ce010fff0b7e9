//! The thread that writes tables: whole maps, which may take seconds.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{inbox::Inbox, outlets::TablesWork, slot::Slot, threads::thread};
use crate::{
    dataplane::{Dataplane, WriteReport},
    enforce::{Input, TablesPlan},
};

/// It comes back to nothing so often.
const IDLE: Duration = Duration::from_secs(3600);

/// What became of tables, for `status`.
#[derive(Clone, Default)]
pub(super) struct TablesRow {
    /// How often they were written, or failed to be.
    pub(super) tries: u64,
    /// What the last write did that did not fail.
    pub(super) report: WriteReport,
}

/// Writes tables, and tells what became of them.
pub(super) struct Tables {
    pub(super) dataplane: Arc<Mutex<Dataplane>>,
    pub(super) work: Arc<Slot<TablesWork>>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) row: watch::Sender<TablesRow>,
    /// How many backends fit, for the log.
    pub(super) max_backends: u32,
}

impl Tables {
    /// Starts the thread.
    pub(super) fn start(self, panicked: CancellationToken) -> std::io::Result<()> {
        let started = thread("tables", panicked, move || {
            loop {
                let work = self.work.take(IDLE, |work| work.plan.is_some());
                if let Some(plan) = work.plan {
                    self.write(&plan);
                }
            }
        });
        started.map(drop)
    }

    fn write(&self, plan: &TablesPlan) {
        let mut dataplane = self.dataplane.lock().unwrap_or_else(PoisonError::into_inner);
        let written = dataplane.write(&plan.tables);
        let result = written.as_ref().map(|_| ()).map_err(|error| error.to_string().into());
        // While the tables are still this thread's: whoever gets them next and waits for the owner of verdicts finds verdicts beside them.
        self.inbox.tell(Input::Written { epoch: plan.epoch, result });
        drop(dataplane);
        if let Ok(report) = &written {
            self.log(report);
        }
        self.row.send_modify(|row| {
            row.tries += 1;
            if let Ok(report) = written {
                row.report = report;
            }
        });
    }

    fn log(&self, report: &WriteReport) {
        if report.left_out + report.left_out_ports != 0 {
            tracing::error!(
                backends = report.left_out,
                ports = report.left_out_ports,
                first = ?report.left_out_first,
                max_backends = self.max_backends,
                "the maps are full; traffic to these backends passes"
            );
        }
        tracing::debug!(
            inserted = report.inserted,
            updated = report.updated,
            deleted = report.deleted,
            "wrote the tables"
        );
    }
}
