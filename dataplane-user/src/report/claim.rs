//! Claims on nodes, and who holds them.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enforce::LimitScope;

pub use crate::enforce::ClaimCause;

const CLI: &str = "cli";

/// Who set a flag: `cli`, the key of the source of nodes, such as `cluster-file`, or `nodeflag:` with the name of the NodeFlag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Origin {
    /// The command `nodefence flag`.
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
    /// Who set the flag.
    pub origin: Origin,
    /// Who set the flag, in words: `nodefence flag`, the name of the source of nodes, or that of the NodeFlag.
    pub set_by: String,
    /// The user who set the flag, in words. May be empty.
    #[serde(default)]
    pub by: String,
    /// Why the flag was set, in words. May be empty.
    pub reason: String,
    /// When the flag was set, by the wall clock of that moment.
    pub since: Timestamp,
    /// Seconds until the flag ends by itself. `None` if it holds until it is removed.
    pub remaining_seconds: Option<u64>,
    /// When the flag ends by itself, by the wall clock of the moment of this report. `None` if it holds until it is removed.
    pub until: Option<Timestamp>,
}

/// The effect of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimState {
    /// Packets to the node are cut.
    Enforced,
    /// Packets that would be cut are only counted.
    Observed,
    /// The claim has no effect, because a limit is exceeded.
    Withheld,
    /// The claim has no effect: automatic claims are only shown (`--auto off`).
    Off,
    /// The claim has no effect: the settings for all agents say that the node is never cut.
    OptedOut,
    /// The claim has no effect, because the view does not have the node at the moment.
    Unknown,
    /// The claim has ended. The source of nodes still has it.
    Over,
}

/// The nodes that a limit counts together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "name", rename_all = "snake_case")]
pub enum ScopeRow {
    /// All nodes.
    AllNodes,
    /// The nodes of this zone.
    Zone(String),
    /// The nodes of this pool.
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

/// A claim on a node: a flag, or an automatic claim, which no person made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimRow {
    /// Who holds the claim: `cli`, the key of the source of nodes, `hung`, `unreachable`, `nodeflag:` with the name of the NodeFlag, or `external:` with the name of another
    /// system.
    pub source: String,
    /// Why the node is claimed.
    pub cause: ClaimCause,
    /// The user or controller who made the claim, in words. May be empty.
    pub by: String,
    /// The reason for the claim, in words. May be empty.
    pub reason: String,
    /// What was observed of a hung node, in words. `None` for other causes.
    pub evidence: Option<String>,
    /// When the claim was first made, by the wall clock of that moment.
    pub since: Timestamp,
    /// When the claim ends by itself, by the wall clock of the moment of this report. An automatic claim that is renewed ends later. `None` if it holds until it is removed.
    pub until: Option<Timestamp>,
    /// The effect of the claim.
    pub standing: ClaimState,
    /// The scopes whose limits are exceeded. Empty unless `standing` is `withheld`.
    pub withheld_by: Vec<ScopeRow>,
}

/// A scope in which more nodes are claimed than automatic claims may cut. No automatic claim that was first made up to `since` is enforced there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WithheldRow {
    /// The nodes of the scope.
    pub scope: ScopeRow,
    /// When the limit was last exceeded.
    pub since: Timestamp,
    /// Until this time, only claims that were first made after `since` count towards the limit.
    pub until: Timestamp,
    /// The number of nodes that were claimed at `since`, flagged nodes included. 0 if an agent before this one counted them.
    pub counted: u32,
    /// The number of nodes of the scope that may be claimed, flagged nodes included. 0 if an agent before this one counted them.
    pub allowed: u32,
}

impl fmt::Display for WithheldRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, since, until, counted, allowed } = self;
        // An agent that took over knows that the limit was exceeded, but no number.
        match allowed {
            0 => write!(f, "{scope}: more nodes claimed than the limit")?,
            _ => write!(f, "{scope}: {counted} nodes claimed, limit {allowed}")?,
        }
        write!(
            f,
            "; automatic claims raised up to {since} are not enforced there, and count towards the limit again from {until}"
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
            "zone x: 3 nodes claimed, limit 2; automatic claims raised up to 1970-01-01T00:00:00Z are not enforced there, and count \
             towards the limit again from 1970-01-01T00:05:00Z"
        );
        let taken_over = row(0, 0).to_string();
        assert!(
            taken_over.starts_with("zone x: more nodes claimed than the limit; automatic claims "),
            "{taken_over}"
        );
    }
}
