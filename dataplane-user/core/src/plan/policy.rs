use std::time::Duration;

use nodefence_common::{Action, BackendEntry, NodeEntry, VERDICT_LIFETIME_NS, Verdict, backend_flags};

use super::indices::{Slot, name_field};
use crate::cluster::{Backend, Scope};

/// Whether the datapath cuts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Packets to a flagged node are cut.
    #[default]
    Enforce,
    /// Packets pass. Those that would be cut are counted.
    Observe,
}

/// The mode as the command line names it.
impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        })
    }
}

/// What a sender gets when its packet is cut.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// A RST or an ICMP port unreachable, so that the sender reconnects at once.
    #[default]
    Refuse,
    /// Nothing.
    Drop,
}

/// How flags are carried out on this node.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// This node's name: sockets of this machine still reach its backends where their packets are not translated.
    pub own_node: &'a str,
    /// Whether to cut.
    pub mode: Mode,
    /// How to cut.
    pub answer: Answer,
}

impl Policy<'_> {
    /// What is done with packets to a flagged node.
    pub fn action(&self) -> Action {
        match (self.mode, self.answer) {
            (Mode::Observe, _) => Action::Observe,
            (Mode::Enforce, Answer::Refuse) => Action::Refuse,
            (Mode::Enforce, Answer::Drop) => Action::Drop,
        }
    }
}

/// A node's entry. `until`: up to when (CLOCK_MONOTONIC, ns) its verdict holds; `None` where it bears none.
pub(crate) fn node_entry(name: &str, slot: Slot, policy: &Policy<'_>, until: Option<u64>) -> NodeEntry {
    let (verdict, action, until) = match until {
        None => (Verdict::Healthy, Action::Refuse, 0),
        Some(until) => (Verdict::Flagged, policy.action(), until),
    };
    NodeEntry {
        verdict: verdict as u32,
        action: action as u32,
        until,
        generation: slot.generation,
        name: name_field(name),
    }
}

/// Up to when (CLOCK_MONOTONIC, ns) a verdict holds that is renewed now: its lifetime, but not beyond the flag's own end.
pub(crate) fn verdict_until(now: u64, remaining: Option<Duration>) -> u64 {
    let remaining = remaining.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    now.saturating_add(VERDICT_LIFETIME_NS.min(remaining))
}

/// The entry of a backend of the node with this place. `is_own`: whether the agent runs on that node.
pub(super) fn backend_entry(slot: Slot, is_own: bool, backend: &Backend) -> BackendEntry {
    let scope = match backend.scope {
        Scope::Address => 0,
        Scope::Port(..) => backend_flags::PORT_SCOPED,
    };
    let flags = scope | if is_own { backend_flags::OWN } else { 0 };
    BackendEntry { node: slot.index, generation: slot.generation, flags }
}
