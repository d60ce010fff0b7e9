//! Claims on nodes, and who holds them.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enforce::LimitScope;

pub use crate::enforce::ClaimCause;

const CLI: &str = "cli";

/// Where a flag comes from: `cli`, or the key of the source of nodes, as `cluster-file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Origin {
    /// `nodefence flag`.
    Cli,
    /// The source of nodes, by its key.
    Source(String),
}

impl Origin {
    /// The origin's name in [`ClaimRow::source`].
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlagRow {
    /// Who set it.
    pub origin: Origin,
    /// The same for people: `nodefence flag`, or what the source of nodes is called.
    pub set_by: String,
    /// Which user that was, in words; may be empty.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// Nodes for which a limit holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "name", rename_all = "snake_case")]
pub enum ScopeRow {
    /// All nodes.
    AllNodes,
    /// Those of this zone.
    Zone(String),
    /// Those of this pool.
    Pool(String),
}

impl From<&LimitScope> for ScopeRow {
    fn from(scope: &LimitScope) -> Self {
        match scope {
            LimitScope::Whole => Self::AllNodes,
            LimitScope::Zone(zone) => Self::Zone(zone.to_string()),
            LimitScope::Pool(pool) => Self::Pool(pool.to_string()),
        }
    }
}

impl fmt::Display for ScopeRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllNodes => f.write_str("all nodes"),
            Self::Zone(zone) => write!(f, "zone {zone}"),
            Self::Pool(pool) => write!(f, "pool {pool}"),
        }
    }
}

/// What somebody holds against a node: a flag, or a claim that no person made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Whose limits it exceeds.
    pub withheld_by: Vec<ScopeRow>,
}

/// Nodes of which more are claimed than claims that no person made may cut: none of these is enforced there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WithheldRow {
    /// Which nodes.
    pub scope: ScopeRow,
    /// When they were released.
    pub since: Timestamp,
    /// Up to then only claims that were first raised after `since` count.
    pub until: Timestamp,
    /// How many nodes were claimed then, flagged ones among them; 0 where another agent counted.
    pub counted: u32,
    /// How many may be; 0 where another agent counted.
    pub allowed: u32,
}

impl fmt::Display for WithheldRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, since, until, counted, allowed } = self;
        // An agent that took over knows that the limit was exceeded, but no number.
        match allowed {
            0 => write!(f, "of {scope} more are claimed than may be")?,
            _ => write!(f, "of {scope} {counted} are claimed and {allowed} may be")?,
        }
        write!(
            f,
            ": no claim that no person made is enforced there since {since}; up to {until} only those count that are raised \
             after that"
        )
    }
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

    #[test]
    fn a_limit_that_is_exceeded_is_said() {
        let row = |counted, allowed| WithheldRow {
            scope: ScopeRow::Zone("x".to_owned()),
            since: Timestamp::UNIX_EPOCH,
            until: Timestamp::from_second(300).unwrap(),
            counted,
            allowed,
        };
        assert_eq!(
            row(3, 2).to_string(),
            "of zone x 3 are claimed and 2 may be: no claim that no person made is enforced there since 1970-01-01T00:00:00Z; \
             up to 1970-01-01T00:05:00Z only those count that are raised after that"
        );
        let taken_over = row(0, 0).to_string();
        assert!(taken_over.starts_with("of zone x more are claimed than may be: no claim "), "{taken_over}");
    }
}
