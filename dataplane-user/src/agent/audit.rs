//! Watches the tables for what is not as it should be: reads them now and then, remembers since when, answers `audit`, and mends what the operator
//! names.
//!
//! Ages need a memory between two `audit`s, and it must be the agent's: it begins anew with each agent, so that nothing is a fault before it
//! has been watched for long enough.

mod look;
mod mend;
mod read;
mod rows;

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{core::Core, watched::SOONEST};
use crate::plan::Mode;
use look::look;

pub(super) use mend::repair;
pub(super) use rows::report;

/// Watches, and mends what is to be mended without being asked, until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        let crew = core.crew.clone();
        let core = Arc::clone(&core);
        let looking = crew.blocking("audit", move || {
            let mut watch = core.audit.watch();
            let due = watch.due();
            look(&mut watch, &core, due);
            let kinds = &core.settings.audit.repair;
            if !kinds.is_empty() && core.settings.mode == Mode::Enforce {
                mend::mend(&core, &mut watch, kinds);
            }
            watch.pause()
        });
        pause = looking.await?.max(SOONEST / 5);
    }
}
