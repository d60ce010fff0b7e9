//! The command line's settings for verdicts. Only the mode changes while the agent runs, by a command.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    cluster::NodeName,
    plan::{Answer, Mode},
};

/// What the agent does about automatic claims, which no person made.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// The claims are only shown.
    Off,
    /// Packets that the claims would cut are counted.
    #[default]
    Observe,
    /// The claims are enforced like flags, within the limits.
    Enforce,
}

/// As the command line has it.
impl std::fmt::Display for Auto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::Enforce => "enforce",
        })
    }
}

impl Auto {
    /// How an automatic claim is carried out under `mode`: the weaker of the two holds. `None` where it is only shown.
    pub const fn under(self, mode: Mode) -> Option<Mode> {
        match (self, mode) {
            (Self::Off, _) => None,
            (Self::Observe, _) | (Self::Enforce, Mode::Observe) => Some(Mode::Observe),
            (Self::Enforce, Mode::Enforce) => Some(Mode::Enforce),
        }
    }
}

/// How many nodes of a scope automatic claims may cut: a part of its nodes, and at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Numerator.
    pub part: u32,
    /// Denominator. Never 0.
    pub of: u32,
}

impl Default for Share {
    fn default() -> Self {
        Self { part: 1, of: 3 }
    }
}

impl Share {
    /// All nodes: no limit.
    pub const ALL: Self = Self { part: 1, of: 1 };

    /// How many nodes may be cut, of so many.
    pub const fn allowed(self, nodes: u32) -> u32 {
        let allowed = nodes as u64 * self.part as u64 / if self.of == 0 { 1 } else { self.of as u64 };
        match allowed {
            0 => 1,
            _ if allowed > nodes as u64 => nodes,
            allowed => allowed as u32,
        }
    }

    /// The smaller of two shares.
    pub const fn stricter(self, other: Self) -> Self {
        if other.part as u64 * self.of as u64 >= self.part as u64 * other.of as u64 { self } else { other }
    }
}

/// Who changed a setting of the running agent, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ChangedBy {
    /// The user who changed the setting: the user that the kernel names, and the user that sudo names.
    pub by: String,
    /// When the setting was changed.
    pub at: Timestamp,
}

/// The settings of the Enforcer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnforcerSettings {
    /// The node that this agent runs on.
    pub own: NodeName,
    /// Whether to cut at all. A command may change it ([`super::Input::Mode`]).
    pub mode: Mode,
    /// Whether to cut for automatic claims.
    pub auto: Auto,
    /// What senders are told.
    pub answer: Answer,
    /// How many nodes automatic claims may cut, of all, of each zone and of each pool.
    pub limit: Share,
    /// While the view is older than this, nothing is cut, only counted. `None`: the view holds however old it is.
    pub max_view_age: Option<Duration>,
    /// Whether to cut also where another program than kube-proxy forwards Services.
    pub force: bool,
    /// Whether settings that hold for all agents come from the API server. Until they come, those that an earlier agent saved hold; without these,
    /// the agent only observes.
    pub shares: bool,
}
