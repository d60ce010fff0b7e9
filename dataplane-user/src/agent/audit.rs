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
    threads::{Crew, Nice},
    watched::{SOONEST, Watch},
};
use crate::plan::Mode;
use inbox::Asked;
use look::look;

pub(super) use inbox::Inbox;
pub(super) use read::Ground;

/// Starts the thread. It goes on for as long as the process does: the end of the agent waits for no reading.
pub(super) fn start(ground: Ground, inbox: Arc<Inbox>, crew: &Crew) -> std::io::Result<()> {
    let started = crew.thread("audit", Nice::Usual, move || {
        let mut watch = Watch::new(&ground.sight.settings.audit);
        loop {
            // What was asked for meanwhile waited for one reading at most.
            match inbox.take(watch.pause().max(SOONEST / 5)) {
                Some(asked) => answer(&ground, &mut watch, asked),
                None => {
                    let due = watch.due();
                    look(&mut watch, &ground, due);
                }
            }
            // After each reading, whoever had it made: else nothing would be mended while somebody asks again and again.
            mend_unasked(&ground, &mut watch);
        }
    });
    started.map(drop)
}

/// Mends what is to be mended without being asked, of what was seen last.
fn mend_unasked(ground: &Ground, watch: &mut Watch) {
    let kinds = &ground.sight.settings.audit.repair;
    if !kinds.is_empty() && ground.sight.settings.mode == Mode::Enforce {
        mend::mend(ground, watch, kinds);
    }
}

fn answer(ground: &Ground, watch: &mut Watch, asked: Asked) {
    match asked {
        Asked::Reports(waiting) => {
            let report = rows::report(ground, watch);
            for waits in waiting {
                // Whoever asked may have gone.
                let _gone = waits.send(report.clone());
            }
        }
        Asked::Repair { kinds, dry_run, waits } => {
            let _gone = waits.send(mend::repair(ground, watch, &kinds, dry_run));
        }
    }
}
