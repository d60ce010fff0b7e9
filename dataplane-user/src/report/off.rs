//! The state of an agent that is off, and the reports of `off` and `on`.

use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{dataplane::DetachReport, off::Off};

/// What turned the agent off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OffKind {
    /// `nodefence off` on this node. `nodefence on` ends it.
    Node,
    /// The settings in the API server. A change of the settings ends it.
    Settings,
}

/// Who turned the agent off, since when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffRow {
    /// What turned the agent off.
    pub kind: OffKind,
    /// The user who turned the agent off: the user that the kernel names, and the user that sudo names.
    pub by: String,
    /// When the agent was turned off. `None` if the file that says so cannot be understood.
    pub since: Option<Timestamp>,
    /// The reason, in words.
    pub reason: String,
    /// Why the file that says so cannot be understood. The agent is off all the same.
    pub problem: Option<String>,
}

impl OffRow {
    /// The row of an agent that a file turns off.
    pub fn of_file(off: Off) -> Self {
        let Off { by, since, reason, problem } = off;
        Self { kind: OffKind::Node, by, since, reason, problem }
    }

    /// Who turned the agent off where the settings did.
    pub const SETTINGS: &'static str = "the settings in the API server";

    /// The row of an agent that the settings in the API server turn off.
    pub fn of_settings(since: Timestamp) -> Self {
        let by = Self::SETTINGS.to_owned();
        Self { kind: OffKind::Settings, by, since: Some(since), reason: String::new(), problem: None }
    }

    /// Since when and by whom the agent is off, and why, in a line.
    pub fn text(&self) -> String {
        let since = self.since.map(|since| format!(" since {since}")).unwrap_or_default();
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("off{since} by {}{reason}", self.by)
    }

    /// How the off state ends.
    pub fn end(&self) -> &'static str {
        match self.kind {
            OffKind::Node => "`nodefence on` turns it on",
            OffKind::Settings => "`kubectl nodefence mode observe` turns all agents on",
        }
    }
}

/// The state in the status of an agent that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OffState {
    /// The agent is off: it attaches nothing and cuts nothing.
    Off,
}

/// The status of an agent that is off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffStatus {
    /// The state: always `off`.
    pub state: OffState,
    /// The reason for the state, in one line.
    pub why: String,
    /// Who turned the agent off, since when and why.
    pub off: OffRow,
    /// Whether all that agents did to the kernel was taken back.
    pub taken_back: bool,
    /// What could not be taken back yet, in words. The agent tries again each second.
    pub problems: Vec<String>,
    /// The number of flags of commands that are stored, and hold again once the agent is on. `None` if the flags file cannot be read.
    pub flags: Option<usize>,
    /// The version of the agent.
    pub version: String,
    /// The process id of the agent.
    pub pid: u32,
    /// When the agent was turned off, or started in this state.
    pub started: Timestamp,
}

/// The answer to `status` or `mode`: that of an agent that runs, or of one that is off.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value", bound = "T: DeserializeOwned")]
pub enum OrOff<T> {
    /// The agent runs.
    Runs(T),
    /// The agent is off.
    Off(Box<OffStatus>),
}

impl<T: DeserializeOwned> TryFrom<Value> for OrOff<T> {
    type Error = serde_json::Error;

    // An untagged enum would not say which field is missing.
    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value.get("off") {
            Some(_) => serde_json::from_value(value).map(|status| Self::Off(Box::new(status))),
            None => serde_json::from_value(value).map(Self::Runs),
        }
    }
}

/// What `off` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffReport {
    /// Whether the agent was off before. If so, `off` says who turned it off first, and nothing was changed.
    pub was_off: bool,
    /// Who turned the agent off, since when and why.
    pub off: OffRow,
    /// The process id of the agent, which goes on. `None` if no agent runs.
    pub pid: Option<u32>,
    /// What was removed from the kernel.
    #[serde(flatten)]
    pub removed: DetachReport,
    /// The number of destinations that were restored in IPVS.
    pub restored: usize,
    /// The number of flags of commands that are stored, and hold again once the agent is on. `None` if the flags file cannot be read.
    pub flags: Option<usize>,
    /// What the operator should know, in words.
    pub warnings: Vec<String>,
}

/// What `on` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnReport {
    /// Who had turned the agent off, since when and why. `None` if the agent was not off.
    pub was: Option<OffRow>,
    /// Who still turns the agent off. `None` if the agent is on.
    pub still: Option<OffRow>,
    /// The process id of the agent. `None` if no agent runs.
    pub pid: Option<u32>,
    /// Whether the agent runs again. If not, it is starting, or no agent runs.
    pub runs: bool,
    /// The removed file that turned the agent off. `None` if there was no such file.
    pub file: Option<PathBuf>,
    /// What the operator should know, in words.
    pub warnings: Vec<String>,
}
