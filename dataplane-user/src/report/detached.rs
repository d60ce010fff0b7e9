//! The report of `detach`, which needs no agent.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::dataplane::DetachReport;

/// What `detach` took away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Detached {
    /// From the kernel.
    #[serde(flatten)]
    pub removed: DetachReport,
    /// Destinations that were restored in IPVS.
    pub restored: usize,
    /// The file that kept the CLI's flags, where there was one.
    pub flags_file: Option<PathBuf>,
    /// Ledgers that could not be read and were put aside: they are left.
    pub ledgers_left: Vec<PathBuf>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}
