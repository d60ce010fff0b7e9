//! The thread that writes tables. It writes what changed. Where the content of the maps is not known, it writes all, which may take
//! seconds.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    compare::{ComparedRow, Comparing},
    inbox::Inbox,
    outlets::TablesWork,
    slot::Slot,
    threads::{Crew, Priority},
};
use crate::{
    dataplane::{self, TableMaps, WriteReport},
    enforce::{InMaps, Input, TablesPlan},
};

/// The outcome of writes and comparisons, for `status`.
#[derive(Clone, Default)]
pub(super) struct TablesRow {
    /// How often tables were written, or failed to be.
    pub(super) tries: u64,
    /// The report of the last successful write.
    pub(super) report: WriteReport,
    /// The outcome of comparisons.
    pub(super) compared: ComparedRow,
}

/// Writes tables, compares the maps with them, and tells the outcome.
pub(super) struct Tables {
    /// The maps that tables are written to.
    pub(super) maps: TableMaps,
    /// The entries that are known to be in the maps.
    pub(super) in_maps: InMaps,
    pub(super) work: Arc<Slot<TablesWork>>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) row: watch::Sender<TablesRow>,
    /// Compares all of the maps with `in_maps` now and then.
    pub(super) comparing: Comparing,
    /// How many backends fit, for the log.
    pub(super) max_backends: u32,
}

impl Tables {
    /// Starts the thread.
    pub(super) fn start(mut self, crew: &Crew) -> std::io::Result<()> {
        let started = crew.thread("tables", Priority::Batch, move || {
            loop {
                let work = self.work.take(self.comparing.pause(), |work| work.plan.is_some() || work.end);
                if work.end {
                    return Ok(());
                }
                if let Some(plan) = work.plan {
                    self.write(&plan);
                    self.comparing.written();
                }
                if let Some(compared) = self.comparing.go_on(&mut self.maps, &self.in_maps) {
                    self.row.send_modify(|row| row.compared = compared);
                }
            }
        });
        started.map(drop)
    }

    fn write(&mut self, plan: &TablesPlan) {
        let written = self.try_write(plan);
        let result = written.as_ref().map(|_| ()).map_err(|error| error.to_string().into());
        self.inbox.tell(Input::Written { epoch: plan.epoch, result });
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

    fn try_write(&mut self, plan: &TablesPlan) -> Result<WriteReport, dataplane::Error> {
        let Self { maps, in_maps, .. } = self;
        let delta = in_maps.begin(plan, || maps.read())?;
        let (report, left_out) = maps.write(&delta)?;
        in_maps.written(plan, left_out);
        Ok(report)
    }

    fn log(&self, report: &WriteReport) {
        if report.left_out + report.left_out_ports != 0 {
            let first: Vec<String> = report.left_out_first.iter().map(ToString::to_string).collect();
            tracing::error!(
                event = "maps-full",
                backends = report.left_out,
                ports = report.left_out_ports,
                first = first.join(", "),
                max_backends = self.max_backends,
                "the maps are full; traffic to these backends passes"
            );
        }
        tracing::debug!(
            event = "tables-written",
            inserted = report.inserted,
            updated = report.updated,
            deleted = report.deleted,
            "backends were written into the maps"
        );
    }
}
