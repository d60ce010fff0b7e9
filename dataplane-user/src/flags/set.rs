use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::clock::Clocks;
use crate::cluster::{FileFlag, NodeName};

/// Where a flag comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// `nodefence flag`.
    Cli,
    /// The cluster file.
    ClusterFile,
}

/// An operator's flag on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Where it comes from.
    pub origin: Origin,
    /// The operator's words; may be empty.
    pub reason: String,
    /// When it was set, or first seen in the file, by the wall clock of that moment.
    pub since: Timestamp,
    /// When it ends, by CLOCK_BOOTTIME; `None` where only an `unflag` ends it.
    pub ends: Option<Duration>,
    /// When it ends by the wall clock, where the operator said so in those terms.
    pub until: Option<Timestamp>,
}

impl Flag {
    /// Whether it is over. An end that was given in wall time is held against both clocks, and the first to pass it
    /// counts: a wall clock that is set back cannot prolong a flag, and one that is put right ends it in time.
    pub fn ended(&self, now: Clocks) -> bool {
        self.ends.is_some_and(|ends| ends <= now.boot) || self.until.is_some_and(|until| until <= now.wall)
    }

    /// How long it still holds; `None` where nothing but an `unflag` ends it.
    pub fn remaining(&self, now: Clocks) -> Option<Duration> {
        let boot = self.ends.map(|ends| ends.saturating_sub(now.boot));
        let wall = self
            .until
            .map(|until| Duration::try_from(until.duration_since(now.wall)).unwrap_or(Duration::ZERO));
        match (boot, wall) {
            (Some(boot), Some(wall)) => Some(boot.min(wall)),
            (boot, wall) => boot.or(wall),
        }
    }
}

/// All flags, by node.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    cli: BTreeMap<NodeName, Flag>,
    file: BTreeMap<NodeName, Flag>,
}

impl Flags {
    /// Begins with the flags that an earlier agent left.
    pub fn with_cli(cli: BTreeMap<NodeName, Flag>) -> Self {
        Self { cli, file: BTreeMap::new() }
    }

    /// The flags set by the CLI, for the store.
    pub fn cli(&self) -> &BTreeMap<NodeName, Flag> {
        &self.cli
    }

    /// Sets the CLI's flag on a node; an older one of the CLI is replaced.
    pub fn flag(&mut self, node: &str, reason: String, lasts: Option<Duration>, now: Clocks) {
        let ends = lasts.map(|lasts| now.boot.saturating_add(lasts));
        let flag = Flag { origin: Origin::Cli, reason, since: now.wall, ends, until: None };
        self.cli.insert(node.into(), flag);
    }

    /// Takes the CLI's flag back. `false` where there was none.
    pub fn unflag(&mut self, node: &str) -> bool {
        self.cli.remove(node).is_some()
    }

    /// Takes over what the cluster file says. A flag that stood there before, with the same end, keeps the deadline that
    /// it was given when it was first seen.
    pub fn set_file(&mut self, flags: &[FileFlag], now: Clocks) {
        let before = std::mem::take(&mut self.file);
        for wanted in flags {
            let flag = match before.get(&wanted.node) {
                Some(flag) if flag.until == wanted.until => {
                    Flag { reason: wanted.reason.clone(), ..flag.clone() }
                }
                _ => Flag {
                    origin: Origin::ClusterFile,
                    reason: wanted.reason.clone(),
                    since: now.wall,
                    ends: wanted.until.map(|until| {
                        let left = Duration::try_from(until.duration_since(now.wall)).unwrap_or_default();
                        now.boot.saturating_add(left)
                    }),
                    until: wanted.until,
                },
            };
            self.file.insert(wanted.node.clone(), flag);
        }
    }

    /// Puts back the CLI's flag that a node bore before [`Flags::flag`].
    pub fn restore(&mut self, node: &str, before: Option<Flag>) {
        match before {
            Some(flag) => drop(self.cli.insert(node.into(), flag)),
            None => drop(self.cli.remove(node)),
        }
    }

    /// Drops the CLI's flags that are over. Returns whether there were any. One on a node that nobody knows at the moment
    /// stays: the cluster file may lack the node by a slip, and the node hangs all the same. (The file's own stay: they
    /// stand in the file.)
    pub fn expire(&mut self, now: Clocks) -> bool {
        let before = self.cli.len();
        self.cli.retain(|_, flag| !flag.ended(now));
        self.cli.len() != before
    }

    /// The flag that holds on a node now; the CLI's before the file's.
    pub fn get(&self, node: &str, now: Clocks) -> Option<&Flag> {
        [&self.cli, &self.file].into_iter().filter_map(|flags| flags.get(node)).find(|flag| !flag.ended(now))
    }

    /// Every flag that holds now, by node.
    pub fn iter(&self, now: Clocks) -> impl Iterator<Item = (&NodeName, &Flag)> {
        let mut all: BTreeMap<&NodeName, &Flag> = BTreeMap::new();
        for (node, flag) in self.cli.iter().chain(&self.file).filter(|(_, flag)| !flag.ended(now)) {
            all.entry(node).or_insert(flag);
        }
        all.into_iter()
    }
}
