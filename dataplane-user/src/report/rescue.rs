//! The fates of packets that meet the cut and can be balanced anew.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether packets of this machine's own sockets are balanced anew when they are sent once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OwnState {
    /// None was seen yet.
    #[default]
    NotTried,
    /// They are, of every kind that was seen.
    Balanced,
    /// Some kinds are not. They go elsewhere when their sender sends them again.
    Repeated,
}

/// What becomes of packets of this machine's own sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnRow {
    /// Whether they are balanced anew.
    pub state: OwnState,
    /// Kinds that are not: IP version and protocol, as in `IPv4 TCP`.
    pub repeated: Vec<String>,
}

impl fmt::Display for OwnRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            OwnState::NotTried => f.write_str("not tried yet"),
            OwnState::Balanced => f.write_str("balanced anew"),
            OwnState::Repeated => {
                write!(f, "{}: go elsewhere when they are sent again", self.repeated.join(", "))
            }
        }
    }
}

/// New connections and datagrams that met the cut and were balanced anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RescueRow {
    /// Why none is; `None` where they are.
    pub idle: Option<String>,
    /// What becomes of those of this machine's own sockets, which are sent once more by a raw socket.
    pub own: OwnRow,
    /// How many were rescued; one that met the cut again counts again.
    pub rescued: u64,
    /// How many were refused after all their tries.
    pub tries: u64,
    /// How many were refused at once, since more came than `--rescue-per-second` and the agent's share of a processor allow.
    pub beyond_budget: u64,
    /// How many were not rescued for another reason, by the name of its counter. Later versions may have more counters.
    pub not: BTreeMap<String, u64>,
}
