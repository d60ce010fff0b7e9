//! What is held against nodes, and by whom.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::enforce::ClaimCause;

const CLI: &str = "cli";

/// Where a flag comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Origin {
    /// `nodefence flag`.
    Cli,
    /// The source of nodes, by its key.
    Source(String),
}

impl Origin {
    /// Its name in [`ClaimRow::source`].
    pub fn source(&self) -> &str {
        match self {
            Self::Cli => CLI,
            Self::Source(key) => key,
        }
    }
}

impl From<String> for Origin {
    fn from(word: String) -> Self {
        if word == CLI { Self::Cli } else { Self::Source(word) }
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.source().to_owned()
    }
}

/// A flag that holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagRow {
    /// Who set it.
    pub origin: Origin,
    /// The same for people: `nodefence flag`, or what the source of nodes is called.
    pub set_by: String,
    /// Which user that was, as [`ClaimRow::by`] has it; may be empty.
    #[serde(default)]
    pub by: String,
    /// Why; may be empty.
    pub reason: String,
    /// Since when, by the wall clock of that moment.
    pub since: Timestamp,
    /// Seconds until it ends by itself; `None` where only an `unflag` ends it.
    pub remaining_seconds: Option<u64>,
    /// When that is, by the wall clock of this moment.
    pub until: Option<Timestamp>,
}

/// What is done about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimState {
    /// Its node is cut for it.
    Enforced,
    /// What it would cut is counted.
    Observed,
    /// It exceeds a limit.
    Withheld,
    /// Claims that no person made are only shown.
    Off,
    /// There is no such node at the moment.
    Unknown,
    /// It is over, and stands in the cluster's source still.
    Over,
}

/// What somebody holds against a node: a flag, or a claim that no person made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRow {
    /// Who holds it: `cli`, the key of the source of nodes, `hung`, `unreachable`, or `external:` with the name of another system.
    pub source: String,
    /// Why.
    pub cause: ClaimCause,
    /// Who wanted it, in words; may be empty.
    pub by: String,
    /// Why, in words; may be empty.
    pub reason: String,
    /// What was seen, of a hung node.
    pub evidence: Option<String>,
    /// Since when, by the wall clock of that moment.
    pub since: Timestamp,
    /// When it ends by itself, by the wall clock of this moment; what no person made ends then unless it is renewed.
    pub until: Option<Timestamp>,
    /// What is done about it.
    pub standing: ClaimState,
    /// Whose limits it exceeds: `all nodes`, `zone NAME`, `pool NAME`.
    pub withheld_by: Vec<String>,
}

/// Nodes of which more are claimed than claims that no person made may cut: none of these is enforced there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldRow {
    /// Which nodes: `all nodes`, `zone NAME`, `pool NAME`.
    pub scope: String,
    /// When they were released.
    pub since: Timestamp,
    /// Up to then only claims that were first raised after `since` count.
    pub until: Timestamp,
    /// How many nodes were claimed then, flagged ones among them; 0 where another agent counted.
    pub counted: u32,
    /// How many may be; 0 where another agent counted.
    pub allowed: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_s_origin_has_the_same_name_in_both_rows() {
        for origin in [Origin::Cli, Origin::Source("any".to_owned())] {
            let json = serde_json::to_value(&origin).unwrap();
            assert_eq!(json, origin.source());
            assert_eq!(serde_json::from_value::<Origin>(json).unwrap(), origin);
        }
    }
}
