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

use std::sync::Arc;

use super::{
    core::Core,
    threads::Nice,
    watched::{SOONEST, Watch},
};
use crate::plan::Mode;
use inbox::Asked;
use look::look;

pub(super) use inbox::Inbox;

/// Starts the thread. It goes on for as long as the process does: the end of the agent waits for no reading.
pub(super) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let core = Arc::clone(core);
    let crew = core.crew.clone();
    let started = crew.thread("audit", Nice::Usual, move || {
        let mut watch = Watch::new(&core.settings.audit);
        loop {
            // What was asked for meanwhile waited for one reading at most.
            match core.audit.take(watch.pause().max(SOONEST / 5)) {
                Some(asked) => answer(&core, &mut watch, asked),
                None => again(&core, &mut watch),
            }
        }
    });
    started.map(drop)
}

/// Looks at what is due, and mends what is to be mended without being asked.
fn again(core: &Core, watch: &mut Watch) {
    let due = watch.due();
    look(watch, core, due);
    let kinds = &core.settings.audit.repair;
    if !kinds.is_empty() && core.settings.mode == Mode::Enforce {
        mend::mend(core, watch, kinds);
    }
}

fn answer(core: &Core, watch: &mut Watch, asked: Asked) {
    match asked {
        Asked::Reports(waiting) => {
            let report = rows::report(core, watch);
            for waits in waiting {
                // Whoever asked may have gone.
                let _gone = waits.send(report.clone());
            }
        }
        Asked::Repair { kinds, dry_run, waits } => {
            let _gone = waits.send(mend::repair(core, watch, &kinds, dry_run));
        }
    }
}
