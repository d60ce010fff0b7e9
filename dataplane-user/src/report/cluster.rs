//! The source of nodes, and what was taken from it.

use std::{fmt, net::IpAddr};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::Conflict;

/// The source of nodes, backends and Services, and the view that was taken from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterRow {
    /// What it is called, with its article.
    pub source: String,
    /// Its path, where it is a file.
    pub file: Option<String>,
    /// When the view that holds was taken from it.
    pub loaded: Timestamp,
    /// How many seconds ago the source last said that it is so, whatever became of the wall clock meanwhile.
    pub age_seconds: u64,
    /// How old it may be, in seconds, before nothing is cut by it; `None` where it holds however old it is.
    pub max_age_seconds: Option<u64>,
    /// Whether it is older.
    pub is_old: bool,
    /// Nodes in that view.
    pub nodes: usize,
    /// Backends in that view.
    pub backends: usize,
    /// Services in that view; `None` where the source says nothing of them.
    pub services: Option<usize>,
    /// Their endpoints.
    pub endpoints: Option<usize>,
    /// Why what it says now was not taken; the last good view holds.
    pub error: Option<String>,
    /// How many conflicts there are among its objects; what conflicts is left out of the view. A file has none: it is taken as a whole or not at all.
    pub conflicts: usize,
    /// The first of them, by object.
    pub conflict_examples: Vec<ConflictRow>,
    /// How many endpoints and backends are left out of the maps and not cut, since each may be its node's own address.
    pub left_out: usize,
    /// The first of them, by node.
    pub left_out_examples: Vec<LeftOutRow>,
    /// What is dangerous about the flags in it.
    pub flags: Vec<String>,
    /// Why the file's folder is not watched; it is then looked at every few seconds.
    pub watch: Option<String>,
    /// Number of the view that holds: rises with each one that was worked out.
    pub view: u64,
    /// What reading it, or taking its objects, has cost since the agent runs, but for the first time.
    pub reading: ReadingRow,
}

/// What is inconsistent about an object, by itself or with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConflictRow {
    /// Which object, as in ``node `node-b` ``.
    pub object: String,
    /// Which of its fields.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

impl ConflictRow {
    /// The row of a conflict.
    pub fn new(conflict: &Conflict) -> Self {
        let Conflict { object, field, message } = conflict;
        Self { object: object.to_string(), field: field.clone(), message: message.clone() }
    }
}

impl fmt::Display for ConflictRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, message } = self;
        write!(f, "{object}, {field}: {message}")
    }
}

/// An endpoint or backend that is left out of the maps: packets to it pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOutRow {
    /// Its node.
    pub node: String,
    /// Its address.
    pub address: IpAddr,
    /// Why it is left out.
    pub why: String,
}

/// What reading the source costs: what follows from it apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadingRow {
    /// How often it was read, or changes of its objects were taken.
    pub times: u64,
    /// Microseconds of a processor that this took, all times together.
    pub processor_micros: u64,
    /// When the last one ended: CLOCK_MONOTONIC nanoseconds, the clock of the datapath; 0 before.
    pub ended_ns: u64,
}
