//! What is run in the incident, and when.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::scenario::Scenario;

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

/// The times of a run, counted from the freeze.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long the clients run before the freeze.
    pub calm: Duration,
    /// From the freeze to the flag.
    pub flag: Duration,
    /// How long the node stays frozen in a run without a flag.
    pub stock: Duration,
    /// How long the node stays frozen in a run with a flag.
    pub flagged: Duration,
    /// How long the clients go on once the node is back.
    pub after: Duration,
}

impl Times {
    /// The times on real kubelets. Without a flag, kube-proxy stops using the frozen node after about 60 s.
    pub const FULL: Self = Self {
        calm: Duration::from_secs(10),
        flag: Duration::from_secs(1),
        stock: Duration::from_secs(75),
        flagged: Duration::from_secs(40),
        after: Duration::from_secs(15),
    };
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
