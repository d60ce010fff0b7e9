//! The receivers of what a source tells.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::super::{builder::Builds, told::SourceRow};
use crate::{enforce::Now, flags::monotonic_ns, source::StoredAge};

/// Where views go, and what `status` says of the source.
pub(in super::super) struct SourceSink {
    pub(in super::super) builds: Arc<Builds>,
    pub(in super::super) row: watch::Sender<SourceRow>,
}

impl SourceSink {
    /// Notes that something was read, or taken, just now, and how much processor time that took.
    pub(super) fn has_read(&self, took: Duration) {
        self.row.send_modify(|row| {
            row.reading.times += 1;
            row.reading.processor_micros += took.as_micros() as u64;
            row.reading.ended_ns = monotonic_ns();
        });
    }

    /// Notes whether the source answers.
    pub(super) fn is_away(&self, why: Option<&str>) {
        self.row.send_if_modified(|row| {
            let is_other = row.away.as_deref() != why;
            row.away = why.map(str::to_owned);
            is_other
        });
    }

    /// Notes whether parts of the view are what an earlier agent stored.
    pub(super) fn is_stored(&self, stored: Option<StoredAge>) {
        let before_boot = stored.map(|stored| stored.before_boot);
        self.row.send_if_modified(|row| std::mem::replace(&mut row.stored, before_boot) != before_boot);
    }

    /// Notes that the source confirmed the view that holds.
    pub(super) fn has_confirmed(&self, at: Now) {
        self.row.send_modify(|row| row.confirmed = at.boot);
        self.builds.confirm(at);
    }

    /// Notes whether the view was taken. Where it was not, `status` shows the reason.
    pub(super) fn has_taken(&self, taken: Result<(), String>) {
        let error = taken.err();
        self.row.send_modify(|row| {
            // A view is tried again now and then. Each new error is logged once.
            if let Some(error) = error.as_ref().filter(|error| row.error.as_ref() != Some(error)) {
                tracing::error!(
                    event = "view-refused",
                    error,
                    "what the source of nodes says was not taken; the last good view stays in force"
                );
            }
            row.error = error;
        });
    }
}
