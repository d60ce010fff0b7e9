//! What all agents answer, beside a list of some nodes. Pure.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    agent_rows::AgentRow,
    lines::{counts, named},
};
use crate::cli::output::count;

/// What all agents answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct AskedAgents {
    /// The number of agents that were asked.
    pub(super) pods: usize,
    /// The number of these agents that answer.
    pub(super) answering: usize,
    /// The nodes whose agents do not answer.
    pub(super) silent: Vec<String>,
    /// How many agents have each mode.
    pub(super) modes: BTreeMap<String, usize>,
}

impl AskedAgents {
    /// Counts the answers.
    pub(super) fn new(agents: &BTreeMap<String, AgentRow>) -> Self {
        let mut this = Self { pods: agents.len(), ..Self::default() };
        for (node, agent) in agents {
            if agent.silent.is_some() {
                this.silent.push(node.clone());
                continue;
            }
            this.answering += 1;
            *this.modes.entry(agent.mode.clone().unwrap_or_else(|| "unknown".to_owned())).or_default() += 1;
        }
        this
    }

    /// The answers in one line.
    pub(super) fn text(&self) -> String {
        let answer = if self.pods == 1 { "answers" } else { "answer" };
        let mut text =
            format!("{} of {} {answer}: {}", self.answering, count(self.pods, "agent"), counts(&self.modes));
        if !self.silent.is_empty() {
            text += &format!("; no answer from {}", named(&self.silent));
        }
        text
    }
}
