//! The fates of packets that meet the cut and can be balanced anew.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the agent can balance anew the packets of sockets of this machine, by sending each packet once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OwnState {
    /// No such packet was seen yet.
    #[default]
    NotTried,
    /// All kinds of packets that were seen are balanced anew.
    Balanced,
    /// Some kinds of packets are not balanced anew. They go elsewhere when the sender repeats them.
    Repeated,
}

/// The rescue of packets of sockets of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnRow {
    /// Whether they are balanced anew.
    pub state: OwnState,
    /// The kinds that are not balanced anew: IP version and protocol, such as `IPv4 TCP`.
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

/// The rescue: new connections and datagrams that meet the cut are balanced anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RescueRow {
    /// Why no packet is rescued now. `None` if packets are rescued.
    pub idle: Option<String>,
    /// The rescue of packets of sockets of this machine. They are sent once more by a raw socket.
    pub own: OwnRow,
    /// The number of rescued packets. A packet that meets the cut again counts again.
    pub rescued: u64,
    /// The number of packets that were refused after all their tries.
    pub tries: u64,
    /// The number of packets that were refused at once, because more came than `--rescue-per-second` and the processor share of the agent allow.
    pub beyond_budget: u64,
    /// The number of packets that were not rescued for another reason, by the name of the counter. Later versions may have more counters.
    pub not: BTreeMap<String, u64>,
}
