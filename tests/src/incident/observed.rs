//! One run of the incident: when what happened, and what the clients recorded.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result};
use nodefence::flags::monotonic_ns;
use serde::{Deserialize, Serialize};

use super::{
    cluster::Still,
    plan::Way,
    record::{Gap, Kind, Log},
    scenario::Scenario,
};

/// From this time after the flag's creation on, the promises hold.
pub const HOLDS_AFTER_US: u64 = 1_000_000;

/// The name of what stood still where it was the clients' own process.
pub const CLIENTS: &str = "the clients' process";

/// CLOCK_MONOTONIC in microseconds.
pub(crate) fn now_us() -> u64 {
    monotonic_ns() / 1_000
}

/// The moments of a run, as CLOCK_MONOTONIC in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Moments {
    /// All clients were connected.
    pub began: u64,
    /// The node was frozen.
    pub frozen: u64,
    /// The flag existed. In a run without a flag: when it would have existed.
    pub flagged: u64,
    /// The node went on. In a run whose node does not: the end.
    pub thawed: u64,
    /// The clients ended.
    pub ended: u64,
}

impl Moments {
    /// The moment from which on the promises hold.
    pub fn judged(&self) -> u64 {
        self.flagged + HOLDS_AFTER_US
    }

    /// A moment in seconds after the freeze.
    pub fn after_freeze(&self, at: u64) -> f64 {
        (at as f64 - self.frozen as f64) / 1e6
    }
}

/// What became of IPVS's table on the node through which the clients go.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restored {
    /// kube-proxy does not use IPVS.
    NoIpvs,
    /// The node is not back, so the table cannot be as before.
    StaysOff,
    /// The table was as before the freeze so many seconds after the node was unflagged, at the latest.
    After {
        /// The seconds.
        seconds: f64,
    },
    /// The table still differed when it was looked at last.
    Differs {
        /// The lines that differ, `-` before the freeze and `+` at the end.
        lines: Vec<String>,
    },
}

/// What is known of a run beside the clients' log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// What happened to the node.
    #[serde(default)]
    pub scenario: Scenario,
    /// Whether the node was flagged.
    pub way: Way,
    /// The node to which it happened.
    pub frozen: String,
    /// The moments.
    pub moments: Moments,
    /// When guests stood still.
    pub stood_still: Vec<Still>,
    /// IPVS's table after the run.
    pub restored: Restored,
}

impl Facts {
    /// Writes a file with them.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is known beside the log.
    pub facts: Facts,
    /// The clients' log.
    pub log: Log,
}

impl Run {
    /// Writes the two files of a run into a folder.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let name = self.facts.way.file();
        self.facts.write(&folder.join(format!("{name}.json")))?;
        self.log.write(&folder.join(format!("{name}.jsonl")))
    }

    /// Reads the two files of a run.
    ///
    /// # Errors
    /// Fails if a file is missing, or is no such file.
    pub fn read(folder: &Path, way: Way) -> Result<Self> {
        let path = folder.join(format!("{}.json", way.file()));
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let facts = serde_json::from_str(&text).with_context(|| format!("{}: no run", path.display()))?;
        Ok(Self { facts, log: Log::read(&folder.join(format!("{}.jsonl", way.file())))? })
    }

    /// All times in which the clients or a guest stood still, in microseconds, with the name of what stood still.
    pub fn stills(&self) -> Vec<(&str, Gap)> {
        let own = self.log.gaps.iter().map(|gap| (CLIENTS, *gap));
        let guests = self.facts.stood_still.iter().map(|still| {
            let at = still.from_ns / 1_000;
            (still.at.as_str(), Gap { at, took: (still.to_ns / 1_000).saturating_sub(at) })
        });
        own.chain(guests).collect()
    }

    /// How long the clients' process stood still between two moments, in microseconds.
    pub fn stood_still(&self, from: u64, to: u64) -> u64 {
        self.log.gaps.iter().map(|gap| (gap.at + gap.took).min(to).saturating_sub(gap.at.max(from))).sum()
    }

    /// The time from one moment to another in which the clients' process ran, in microseconds.
    pub fn waited(&self, from: u64, to: u64) -> u64 {
        to.saturating_sub(from).saturating_sub(self.stood_still(from, to))
    }

    /// A moment in words.
    pub fn moment(&self, at: u64) -> String {
        let Facts { moments, scenario, .. } = &self.facts;
        format!("{:.3} s after the {}", moments.after_freeze(at), scenario.moment())
    }

    /// For each client with a connection: the node that it was connected to at the freeze.
    pub fn nodes_at_freeze(&self, kind: Kind) -> BTreeMap<u32, &str> {
        let mut nodes = BTreeMap::new();
        let frozen = self.facts.moments.frozen;
        let of_kind = self.log.records.iter().filter(|record| record.kind == kind && record.at < frozen);
        for record in of_kind {
            if let Some(node) = &record.node {
                nodes.insert(record.client, node.as_str());
            }
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_still_is_no_wait_of_a_client() {
        let moments = Moments { began: 0, frozen: 10, flagged: 20, thawed: 90, ended: 100 };
        let facts = Facts {
            scenario: Scenario::Freeze,
            way: Way::Flagged,
            frozen: "node-2".to_owned(),
            moments,
            stood_still: vec![Still { at: "node-1".to_owned(), from_ns: 5_000, to_ns: 9_000 }],
            restored: Restored::NoIpvs,
        };
        let gaps = vec![Gap { at: 10, took: 20 }, Gap { at: 50, took: 5 }];
        let run = Run { facts, log: Log { records: Vec::new(), gaps } };
        assert_eq!(run.waited(0, 100), 75);
        assert_eq!(run.waited(25, 52), 20);
        assert_eq!(run.waited(60, 60), 0);
        assert_eq!(run.stills().last(), Some(&("node-1", Gap { at: 5, took: 4 })));
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        for way in [Way::Stock, Way::Flagged] {
            let moments = Moments { began: 1, frozen: 2, flagged: 3, thawed: 4, ended: 5 };
            let restored = Restored::After { seconds: 1.5 };
            let facts = Facts {
                scenario: Scenario::Off,
                way,
                frozen: "b".to_owned(),
                moments,
                stood_still: Vec::new(),
                restored: restored.clone(),
            };
            Run { facts, log: Log::default() }.write(folder.path()).expect("written");
            let read = Run::read(folder.path(), way).expect("read").facts;
            assert_eq!((read.way, read.restored, read.moments.judged()), (way, restored, 1_000_003));
        }
    }
}
