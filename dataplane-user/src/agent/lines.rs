//! The thread `log`, which words the log lines of `verdicts`: flags do not wait for that.

use std::sync::mpsc::{SyncSender, sync_channel};

use super::{
    records::record,
    threads::{Crew, Priority},
};
use crate::enforce::Event;

/// How many lines wait at most.
const MOST: usize = 4096;

/// A line for the log, before it is put into words.
pub(super) enum Line {
    /// Something that the `Enforcer` did or found.
    Event(Event),
    /// The lease of what is drained from IPVS cannot be renewed, and why.
    Lease(String),
    /// So many lines were lost: there were more than could be put into words.
    Lost(u64),
}

/// Starts the thread, which ends once there is no sender any more.
pub(super) fn start(crew: &Crew) -> std::io::Result<SyncSender<Line>> {
    let (lines, said) = sync_channel(MOST);
    crew.hand("log", Priority::Batch, move || {
        for line in said {
            match line {
                Line::Event(event) => record(&event),
                Line::Lease(problem) => {
                    tracing::error!(
                        event = "ipvs-lease-not-renewed",
                        problem,
                        "the lease of drained IPVS destinations cannot be renewed, and they are restored"
                    );
                }
                Line::Lost(count) => {
                    tracing::warn!(
                        event = "log-lines-lost",
                        count,
                        "lines of the log were lost: there were too many at once"
                    );
                }
            }
        }
    })?;
    Ok(lines)
}
