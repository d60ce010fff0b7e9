//! The report of `detach`, which needs no agent.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::dataplane::DetachReport;

/// What `detach` removed and restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Detached {
    /// What `detach` removed from the kernel.
    #[serde(flatten)]
    pub removed: DetachReport,
    /// The number of destinations that `detach` restored in IPVS.
    pub restored: usize,
    /// The removed file of saved flags. `None` if there was no such file.
    pub flags_file: Option<PathBuf>,
    /// The removed file that turned the agent off (`nodefence off`). `None` if there was no such file.
    pub off_file: Option<PathBuf>,
    /// The ledgers of IPVS that an agent set aside because it could not read them. `detach` leaves them.
    pub ledgers_left: Vec<PathBuf>,
    /// What the operator should know, in words.
    pub warnings: Vec<String>,
}
