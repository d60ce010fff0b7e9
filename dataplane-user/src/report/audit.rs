//! The reports of `audit` and `repair`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::audit::{Kind, State};

/// Something that is not as it should be; flows that differ in the same way are one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceRow {
    /// Of what kind.
    pub kind: Kind,
    /// What it counts as.
    pub state: State,
    /// For how long it has been seen, in seconds; of several flows the oldest.
    pub age_seconds: u64,
    /// What it is about.
    pub subject: String,
    /// How many it stands for: flows, or 1.
    pub count: usize,
    /// Whose Service it is, with the name of its port.
    pub service: Option<String>,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    pub remedy: String,
}

/// A kind of difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KindRow {
    /// Its name.
    pub kind: Kind,
    /// Why it is not looked at; `None` where it is.
    pub not_looked_at: Option<String>,
    /// Since when it has been looked at without a gap, in seconds; nothing of it can be a fault before it has been a difference for long enough.
    pub watched_seconds: Option<u64>,
    /// Faults.
    pub faults: usize,
    /// Differences that are no faults yet.
    pub new: usize,
    /// What ends in order.
    pub draining: usize,
    /// Differences that are counted but not in the list, which has the oldest faults.
    pub not_listed: usize,
}

/// The answer to `audit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditReport {
    /// The node.
    pub node: String,
    /// After how many seconds a difference is a fault.
    pub fault_after_seconds: f64,
    /// Faults of all kinds.
    pub faults: usize,
    /// All kinds.
    pub kinds: Vec<KindRow>,
    /// Faults first, then by kind and age.
    pub differences: Vec<DifferenceRow>,
    /// Kinds that the agent mends by itself.
    pub repairs: Vec<Kind>,
}

/// What became of something that was to be mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It would be done.
    Planned,
    /// It is gone.
    Mended,
    /// It was tried, and the difference is still there.
    Failed,
    /// Nothing was tried.
    Left,
}

/// Something that was to be mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairRow {
    /// Of what kind.
    pub kind: Kind,
    /// What it is about.
    pub subject: String,
    /// Whose Service it is.
    pub service: Option<String>,
    /// What is done about it; why nothing is.
    pub action: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// The answer to `repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Every fault of the kinds that were named.
    pub rows: Vec<RepairRow>,
    /// How many differences of these kinds are no faults, or not yet: left alone.
    pub not_due: usize,
    /// What went wrong, or was not looked at.
    pub notes: Vec<String>,
}
