//! Watches the kernel's tables for differences from what they should contain. The audit reads the tables now and then, remembers
//! since when each difference exists, answers `audit`, and mends the kinds that the operator names. A thread of its own has that
//! memory. A request is put into its inbox without waiting for a reading.
//!
//! The memory must outlast each `audit`, or no difference would have an age. It begins anew with each agent: nothing is a fault
//! before that agent has watched it for long enough.

mod inbox;
mod look;
mod mend;
mod read;
mod rows;

use super::{
    threads::{Crew, Priority},
    watched::{AuditMemory, SOONEST},
};
use crate::plan::Mode;
use inbox::{AuditRequest, take};
use look::look;

pub(super) use inbox::Inbox;
pub(super) use read::AuditContext;

/// Starts the thread, which ends after its next look once the agent does: the end of the agent waits for no reading.
pub(super) fn start(context: AuditContext, crew: &Crew) -> std::io::Result<Inbox> {
    let mut memory = AuditMemory::new(&context.sight.settings.audit);
    let (inbox, asked) = Inbox::new(memory.faults());
    // A sender is held here, so that the thread waits between two looks even when nobody can ask any more.
    let open = inbox.clone();
    let stop = crew.stop();
    crew.thread("audit", Priority::Batch, move || {
        let _open = open;
        loop {
            // A request that came meanwhile waited for one reading at most.
            let all = take(&asked, memory.pause().max(SOONEST / 5));
            if stop.is_cancelled() {
                return Ok(());
            }
            if all.is_empty() {
                let due = memory.due();
                look(&mut memory, &context, due);
                mend_unrequested(&context, &mut memory);
            } else {
                answer(&context, &mut memory, all);
            }
        }
    })?;
    Ok(inbox)
}

/// Mends the faults that were seen last, of the kinds that are mended without a request. This follows each reading, also one that
/// was made for a request: otherwise nothing would be mended while somebody asks again and again.
fn mend_unrequested(context: &AuditContext, memory: &mut AuditMemory) {
    let kinds = &context.sight.settings.audit.repair;
    if !kinds.is_empty() && context.sight.mode() == Mode::Enforce {
        mend::mend(context, memory, kinds);
    }
}

/// Carries out requests. All that wait for a report get the same one: its readings begin after each of them came.
fn answer(context: &AuditContext, memory: &mut AuditMemory, all: Vec<AuditRequest>) {
    let mut waiting = Vec::new();
    for asked in all {
        match asked {
            AuditRequest::Report(waits) => waiting.push(waits),
            AuditRequest::Repair { kinds, dry_run, waits } => {
                let _gone = waits.send(mend::repair(context, memory, &kinds, dry_run));
                mend_unrequested(context, memory);
            }
        }
    }
    if waiting.is_empty() {
        return;
    }
    let report = rows::report(context, memory);
    for waits in waiting {
        // The requester may have gone.
        let _gone = waits.send(report.clone());
    }
    mend_unrequested(context, memory);
}
