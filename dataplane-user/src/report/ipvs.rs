//! The rows of `status` on IPVS.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::NodeName;

/// A service that keeps its destinations on a flagged node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExemptServiceRow {
    /// Protocol, address and port, or firewall mark.
    pub service: String,
    /// Why.
    pub why: String,
}

/// How far a flagged node is drained from IPVS. A pair is a service and a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainRow {
    /// Pairs that get nothing new and have no connections left.
    pub taken: usize,
    /// Pairs that get nothing new and still have connections.
    pub waiting: usize,
    /// Pairs that would be drained (observe mode).
    pub planned: usize,
    /// Services that keep their destinations on the node.
    pub exempt_services: usize,
    /// The first of them, and why.
    pub exempt: Vec<ExemptServiceRow>,
    /// Pairs that the kernel refused to change.
    pub failed: usize,
    /// The first of them.
    pub problems: Vec<String>,
}

/// Who restores what was drained, where the agent is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum GuardRow {
    /// A process that the agent starts once something is drained.
    #[default]
    Child,
    /// One that is started apart.
    External {
        /// Whether it is there.
        seen: bool,
    },
}

/// IPVS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpvsRow {
    /// Whether the kernel has it loaded.
    pub loaded: bool,
    /// What keeps flagged nodes from being drained as they should be.
    pub note: Option<String>,
    /// What went wrong.
    pub problems: Vec<String>,
    /// Changes of the tables that this agent has made: one for each weight, deletion and addition.
    pub changes: u64,
    /// Who restores where this agent is killed.
    pub guard: GuardRow,
    /// By flagged node, and by such as are being restored.
    pub nodes: BTreeMap<NodeName, DrainRow>,
}
