//! The reports of `audit` and `repair`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::audit::{Kind, State};

/// A difference between what the kernel or kube-proxy has and what the cluster says. Flows, or clients, that differ in the same way share one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceRow {
    /// The kind of the difference.
    pub kind: Kind,
    /// Whether the difference is a fault.
    pub state: State,
    /// Seconds since the difference was first seen. Of several flows, the oldest counts.
    pub age_seconds: u64,
    /// The virtual server, destination, flow or client that differs.
    pub subject: String,
    /// The number of differences in this row: the number of flows or clients, else 1.
    pub count: usize,
    /// The Service, as `NAMESPACE/NAME:PORT` with the name of its port. `None` if it is not known.
    pub service: Option<String>,
    /// What is wrong, in words.
    pub detail: String,
    /// What to do about the difference, in words.
    pub remedy: String,
}

/// The counts of one kind of difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KindRow {
    /// The kind.
    pub kind: Kind,
    /// Why the audit does not look for this kind. `None` if it does.
    pub not_looked_at: Option<String>,
    /// Seconds since the audit began to look for this kind without a gap. A difference can be a fault only once this is at least `fault_after_seconds`. `None` if the audit does not look for this kind.
    pub watched_seconds: Option<u64>,
    /// The number of faults.
    pub faults: usize,
    /// The number of differences that are not faults yet.
    pub new: usize,
    /// The number of destinations that end in order. They are not faults.
    pub draining: usize,
    /// The number of differences of this kind that are not in `differences`. The oldest faults are listed first.
    pub not_listed: usize,
}

/// The result of an audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditReport {
    /// The node that the agent runs on.
    pub node: String,
    /// Seconds after which a difference is a fault.
    pub fault_after_seconds: f64,
    /// The number of faults of all kinds.
    pub faults: usize,
    /// One row for each kind.
    pub kinds: Vec<KindRow>,
    /// The differences: faults first, then by kind and age.
    pub differences: Vec<DifferenceRow>,
    /// The kinds that the agent repairs without a command (`nodefence agent --repair`).
    pub repairs: Vec<Kind>,
}

/// The outcome of the repair of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// The agent would try to repair the fault (`--dry-run`).
    WouldFix,
    /// The fault is gone.
    Fixed,
    /// The agent tried to repair the fault, and the fault is still there.
    Failed,
    /// The agent did not try to repair the fault. `action` says why.
    Skipped,
}

/// A fault that was to be repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairRow {
    /// The kind of the fault.
    pub kind: Kind,
    /// The virtual server, destination, flow or client that differs.
    pub subject: String,
    /// The Service, as `NAMESPACE/NAME:PORT` with the name of its port. `None` if it is not known.
    pub service: Option<String>,
    /// How the fault is repaired. If `outcome` is `skipped`: why it is not.
    pub action: String,
    /// The outcome.
    pub outcome: RepairOutcome,
}

/// The result of a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// One row for each fault of the requested kinds.
    pub rows: Vec<RepairRow>,
    /// The number of differences of these kinds that are not faults. They were left alone.
    pub not_due: usize,
    /// What failed, and which kinds the audit does not look for.
    pub notes: Vec<String>,
}
