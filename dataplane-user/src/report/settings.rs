//! The settings that hold for all agents of a cluster, as the API server has them.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::crds::SettingsMode;
use crate::enforce::Auto;

/// The NodefenceSettings of the cluster. Of these, the agent's `--mode` and `nodefence mode` the weakest holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsRow {
    /// Whether there are any. If not, the agent only observes.
    pub found: bool,
    /// Whether agents cut.
    pub mode: SettingsMode,
    /// What agents do about automatic claims.
    pub automatic: Auto,
    /// The part of the nodes that may be claimed by flags without `force` and by automatic claims.
    pub limit: String,
    /// The pauses that hold now. While there is one, agents only observe.
    pub pauses: Vec<PauseRow>,
    /// The nodes that are never cut.
    pub opted_out: Vec<String>,
    /// Why the newest settings cannot be read. The last good ones hold. `None` if they can.
    pub problem: Option<String>,
    /// Why the agent cannot watch flags or settings at the moment. What it knew last holds. `None` if it can.
    pub away: Option<String>,
    /// The NodeFlags that have no effect since they cannot be read.
    pub ignored_flags: Vec<IgnoredFlagRow>,
    /// The NodeFlags that have no effect since their node is gone, or is another machine now, or was never there. This is no fault.
    #[serde(default)]
    pub flags_without_machine: Vec<IgnoredFlagRow>,
}

/// A time in which agents only observe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PauseRow {
    /// Who wants it.
    pub by: String,
    /// Why. May be empty.
    pub reason: String,
    /// When it ends, by the wall clock of the moment of this report.
    pub until: Timestamp,
}

/// A NodeFlag that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IgnoredFlagRow {
    /// The name of the NodeFlag.
    pub name: String,
    /// Why it has no effect: the field, and what is wrong with it.
    pub problem: String,
}

impl SettingsRow {
    /// Why agents only observe; `None` where the settings let them cut.
    pub fn why_observe(&self) -> Option<String> {
        if !self.found {
            return Some("the API server has no NodefenceSettings `default`".to_owned());
        }
        match self.mode {
            SettingsMode::Off => Some("NodefenceSettings say off".to_owned()),
            SettingsMode::Observe => Some("NodefenceSettings say observe".to_owned()),
            SettingsMode::Enforce => self.pauses.first().map(ToString::to_string),
        }
    }
}

impl fmt::Display for PauseRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, reason, until } = self;
        write!(f, "NodefenceSettings: paused by {by} until {until}")?;
        if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_agents_from_cutting_is_said() {
        let pause = |reason: &str| PauseRow {
            by: "ann".to_owned(),
            reason: reason.to_owned(),
            until: Timestamp::UNIX_EPOCH,
        };
        let well = SettingsRow {
            found: true,
            mode: SettingsMode::Enforce,
            automatic: Auto::Observe,
            limit: "1/3".to_owned(),
            pauses: Vec::new(),
            opted_out: Vec::new(),
            problem: None,
            away: None,
            ignored_flags: Vec::new(),
            flags_without_machine: Vec::new(),
        };
        let none = SettingsRow { found: false, ..well.clone() };
        let off = SettingsRow { mode: SettingsMode::Off, ..well.clone() };
        let observe = SettingsRow { mode: SettingsMode::Observe, ..well.clone() };
        let paused = SettingsRow { pauses: vec![pause("a move"), pause("")], ..well.clone() };
        let quietly = SettingsRow { pauses: vec![pause("")], ..well.clone() };
        let said = [none, off, observe, paused, quietly].map(|row| row.why_observe().unwrap());
        let expected = [
            "the API server has no NodefenceSettings `default`",
            "NodefenceSettings say off",
            "NodefenceSettings say observe",
            "NodefenceSettings: paused by ann until 1970-01-01T00:00:00Z: a move",
            "NodefenceSettings: paused by ann until 1970-01-01T00:00:00Z",
        ];
        assert_eq!(said, expected);
        assert_eq!(well.why_observe(), None);
    }
}
