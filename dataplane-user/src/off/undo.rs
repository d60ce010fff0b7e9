use std::path::Path;

use crate::{
    dataplane::{self, DetachReport},
    drain,
};

/// Who takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The agent that made it, once none of its threads attaches or drains any more.
    Agent,
    /// A process that has the lock of the run folder. Refused while another process has the pins.
    Other,
}

/// What was taken back.
#[derive(Debug)]
pub struct TakenBack {
    /// What was removed from the kernel.
    pub removed: DetachReport,
    /// The number of destinations that were restored in IPVS.
    pub restored: usize,
    /// Why destinations could not be restored in IPVS. All else was taken back.
    pub not_restored: Option<anyhow::Error>,
}

/// Restores in IPVS what the ledger of a run folder names, and removes every program, link, filter and pin of ours. May be repeated.
///
/// # Errors
/// Where programs could not be removed.
pub fn take_back(run_dir: &Path, pin_dir: &Path, owner: Owner) -> Result<TakenBack, dataplane::Error> {
    // An error of the restore is handled later, since the programs that cut must be removed in any case.
    let restored = drain::restore_all(run_dir);
    let removed = match owner {
        Owner::Agent => dataplane::detach_own(pin_dir)?,
        Owner::Other => dataplane::detach(pin_dir)?,
    };
    Ok(match restored {
        Ok(restored) => TakenBack { removed, restored, not_restored: None },
        Err(error) => TakenBack { removed, restored: 0, not_restored: Some(error) },
    })
}
