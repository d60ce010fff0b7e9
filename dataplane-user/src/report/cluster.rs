//! The source of nodes, and what was taken from it.

use std::{fmt, net::IpAddr};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::Conflict;

/// The source of nodes, backends and Services, and the view that the agent took from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterRow {
    /// The name of the source, with its article: `the cluster file`.
    pub source: String,
    /// The path of the source. `None` if the source is not a file.
    pub file: Option<String>,
    /// When the agent took the view that holds from the source.
    pub loaded: Timestamp,
    /// Seconds since the source last confirmed the view. Changes of the wall clock do not affect this number.
    pub age_seconds: u64,
    /// The age of the view, in seconds, above which nothing is cut (`--max-view-age`). `None` if the view holds at any age.
    pub max_age_seconds: Option<u64>,
    /// Whether the view is older than `max_age_seconds`.
    pub is_old: bool,
    /// The number of nodes in the view.
    pub nodes: usize,
    /// The number of backends in the view.
    pub backends: usize,
    /// The number of Services in the view. `None` if the source does not list Services.
    pub services: Option<usize>,
    /// The number of endpoints of these Services. `None` if the source does not list Services.
    pub endpoints: Option<usize>,
    /// Why the agent did not accept what the source says now. The last good view holds. `None` if the agent accepted it.
    pub error: Option<String>,
    /// Why the source does not answer. The last good view holds. `None` if it answers, and for a file.
    pub away: Option<String>,
    /// Whether the view, or a part of it, is the one that an earlier agent stored on the disk, since the source has not listed all of its objects yet.
    pub is_stored: bool,
    /// The number of conflicts among the objects of the source. Objects that conflict are left out of the view. Always 0 for a file, which is accepted as a whole or not at all.
    pub conflicts: usize,
    /// The first few conflicts, by object.
    pub conflict_examples: Vec<ConflictRow>,
    /// The number of endpoints that are not cut, as a sound cluster has some: those on nodes that are no members, and those that are in two slices for a moment.
    #[serde(default)]
    pub skipped: usize,
    /// The first few of these endpoints, by object.
    #[serde(default)]
    pub skipped_examples: Vec<ConflictRow>,
    /// The number of endpoints and backends that are left out of the maps, because each may be the address of its node. Traffic to them is not cut.
    pub left_out: usize,
    /// The first few of these endpoints and backends, by node.
    pub left_out_examples: Vec<LeftOutRow>,
    /// What is dangerous about the flags in the source. One text for each danger.
    pub flags: Vec<String>,
    /// Why the agent does not watch the folder of the file. The agent then reads the file every few seconds. `None` if it watches the folder.
    pub watch: Option<String>,
    /// The number of the view that holds. Each new view has a higher number. 0 before the first view.
    pub view: u64,
    /// The cost of reading the source since the agent began, without the first reading.
    pub reading: ReadingRow,
}

/// Something inconsistent about an object, by itself or with other objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConflictRow {
    /// The object, such as ``node `node-b` ``.
    pub object: String,
    /// The field of the object that is inconsistent.
    pub field: String,
    /// What is wrong, in words.
    pub message: String,
}

impl ConflictRow {
    /// The row of a conflict.
    pub fn new(conflict: &Conflict) -> Self {
        let Conflict { object, field, message, is_usual: _ } = conflict;
        Self { object: object.to_string(), field: field.clone(), message: message.clone() }
    }
}

impl fmt::Display for ConflictRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, message } = self;
        write!(f, "{object}, {field}: {message}")
    }
}

/// An endpoint or backend that is left out of the maps. Packets to it pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOutRow {
    /// The node of the endpoint.
    pub node: String,
    /// The address of the endpoint.
    pub address: IpAddr,
    /// Why the endpoint is left out, in words.
    pub why: String,
}

/// The cost of reading the source. The cost of the work that follows is not included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadingRow {
    /// How many times the source was read, or changes of its objects were taken.
    pub times: u64,
    /// Processor time of all these readings, in microseconds.
    pub processor_micros: u64,
    /// When the last reading ended, in nanoseconds of CLOCK_MONOTONIC (the clock of the datapath). 0 before the first reading.
    pub ended_ns: u64,
}
