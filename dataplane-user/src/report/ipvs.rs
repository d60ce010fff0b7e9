//! The rows of `status` on IPVS.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::NodeName;

/// An exempt IPVS service: it keeps its destinations on a flagged node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExemptServiceRow {
    /// The protocol, address and port of the service, or its firewall mark.
    pub service: String,
    /// Why the service is exempt, in words.
    pub why: String,
}

/// The state of the drain of one node in IPVS. A pair is a service and one of its destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainRow {
    /// The number of drained pairs: they get no new connections, and have none left.
    pub drained: usize,
    /// The number of pairs that get no new connections and still have some.
    pub waiting: usize,
    /// The number of pairs that would be drained, while the agent observes.
    pub planned: usize,
    /// The number of exempt services.
    pub exempt_services: usize,
    /// The first few exempt services, with the reason.
    pub exempt: Vec<ExemptServiceRow>,
    /// The number of problems with pairs of the node.
    pub failed: usize,
    /// The first few problems, in words.
    pub problems: Vec<String>,
}

/// The guard restores the drained destinations if the agent is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum GuardRow {
    /// The agent starts the guard as a child process, once something is drained.
    #[default]
    Child,
    /// The guard is started apart from the agent (`--guard external`).
    External {
        /// Whether such a guard runs.
        seen: bool,
    },
}

/// The drain in IPVS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpvsRow {
    /// Whether IPVS is loaded in the kernel.
    pub loaded: bool,
    /// Why flagged nodes are drained only within limits, in words. `None` if there is no limit.
    pub note: Option<String>,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// The number of changes that this agent made to the tables of IPVS. Each weight, deletion and addition counts.
    pub changes: u64,
    /// Which guard restores the drained destinations.
    pub guard: GuardRow,
    /// The drain of each node that is flagged, or whose destinations are being restored, by name.
    pub nodes: BTreeMap<NodeName, DrainRow>,
}
