//! Watches the tables for what is not as it should be: reads them now and then, remembers since when, answers `audit`, and mends what the operator
//! names. A thread of its own has that memory; whoever asks it puts a note into its inbox and waits for nobody who reads.
//!
//! Ages need a memory between two `audit`s, and it must be the agent's: it begins anew with each agent, so that nothing is a fault before it
//! has been watched for long enough.

mod inbox;
mod look;
mod mend;
mod read;
mod rows;

use super::{
    threads::{Crew, Priority},
    watched::{SOONEST, Watch},
};
use crate::plan::Mode;
use inbox::{AuditRequest, take};
use look::look;

pub(super) use inbox::Inbox;
pub(super) use read::Ground;

/// Starts the thread. It goes on for as long as the process does: the end of the agent waits for no reading.
pub(super) fn start(ground: Ground, crew: &Crew) -> std::io::Result<Inbox> {
    let (inbox, asked) = Inbox::new();
    // Held, so that the thread waits between two looks even when nobody can ask any more.
    let open = inbox.clone();
    crew.thread("audit", Priority::Batch, move || {
        let _open = open;
        let mut watch = Watch::new(&ground.sight.settings.audit);
        loop {
            // A request that came meanwhile waited for one reading at most.
            let all = take(&asked, watch.pause().max(SOONEST / 5));
            if all.is_empty() {
                let due = watch.due();
                look(&mut watch, &ground, due);
                mend_unrequested(&ground, &mut watch);
            } else {
                answer(&ground, &mut watch, all);
            }
        }
    })?;
    Ok(inbox)
}

/// Mends what is to be mended without being asked, of what was seen last: after each reading, whoever had it made. Else nothing would be mended while somebody asks
/// again and again.
fn mend_unrequested(ground: &Ground, watch: &mut Watch) {
    let kinds = &ground.sight.settings.audit.repair;
    if !kinds.is_empty() && ground.sight.mode() == Mode::Enforce {
        mend::mend(ground, watch, kinds);
    }
}

/// All who wait for a report get the same one: its readings begin after each of them asked.
fn answer(ground: &Ground, watch: &mut Watch, all: Vec<AuditRequest>) {
    let mut waiting = Vec::new();
    for asked in all {
        match asked {
            AuditRequest::Report(waits) => waiting.push(waits),
            AuditRequest::Repair { kinds, dry_run, waits } => {
                let _gone = waits.send(mend::repair(ground, watch, &kinds, dry_run));
                mend_unrequested(ground, watch);
            }
        }
    }
    if waiting.is_empty() {
        return;
    }
    let report = rows::report(ground, watch);
    for waits in waiting {
        // Whoever asked may have gone.
        let _gone = waits.send(report.clone());
    }
    mend_unrequested(ground, watch);
}
