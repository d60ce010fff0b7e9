//! What is run in the incident.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{scenario::Scenario, times::Times};

/// The incident's nodes, image and times.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The image of the servers, which must be on the server nodes already (`imagePullPolicy: Never`).
    pub image: String,
    /// The node whose NodePorts the clients use.
    pub through: String,
    /// The nodes of the servers.
    pub servers: Vec<String>,
    /// The one of `servers` that freezes.
    pub frozen: String,
    /// How many pods each server node has.
    pub pods_each: usize,
    /// Where the logs, the table and the picture go. Made if it is missing.
    pub out: PathBuf,
    /// What happens to the node.
    pub scenario: Scenario,
    /// The times.
    pub times: Times,
}

impl Plan {
    /// The plan of another scenario, with its times and a folder of its own below this one.
    #[must_use]
    pub fn of(&self, scenario: Scenario) -> Self {
        let out = match scenario {
            Scenario::Freeze => self.out.clone(),
            other => self.out.join(other.name()),
        };
        Self { scenario, times: scenario.times(), out, ..self.clone() }
    }
}

/// Whether the frozen node is flagged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Nobody flags the node.
    Stock,
    /// The node is flagged.
    Flagged,
}

impl Way {
    /// The name in tables and pictures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Flagged => "with nodefence",
        }
    }

    /// The name in file names.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Flagged => "flagged",
        }
    }
}
