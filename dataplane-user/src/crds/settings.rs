//! The kind NodefenceSettings: what holds for all agents of the cluster.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::end::until;
use crate::enforce::Share;

/// The name of the one object of this kind that is read.
pub const SETTINGS_NAME: &str = "default";

/// What holds for all agents. Of this, an agent's `--mode` and `nodefence mode` the weakest holds.
#[derive(kube::CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "nodefence.io",
    version = "v1alpha1",
    kind = "NodefenceSettings",
    plural = "nodefencesettings",
    shortname = "nfs",
    doc = "What holds for all agents of the cluster. Only the object named `default` is read.",
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name == 'default'").message("only an object named `default` is read"),
    validation = Rule::new("!has(self.spec.pauses) || self.spec.pauses.all(pause, pause.until < timestamp('9999-01-01T00:00:00Z'))").message("spec.pauses: expected an `until` before the year 9999"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Automatic", type_ = "string", json_path = ".spec.automatic"),
    printcolumn(name = "Limit", type_ = "string", json_path = ".spec.limit"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodefenceSettingsSpec {
    /// Whether agents cut.
    #[serde(default)]
    pub mode: SettingsMode,
    /// What agents do about claims that no person made.
    #[serde(default)]
    pub automatic: SettingsMode,
    /// How many nodes may be claimed by flags without `force` and by claims that no person made, of all, of each zone and of each pool: a
    /// part, such as 1/3. One node is always allowed.
    #[serde(default = "default_limit")]
    // Agents take numbers of 32 bits: nine digits always fit.
    #[schemars(length(max = 19), regex(pattern = r"^[1-9][0-9]{0,8}/[1-9][0-9]{0,8}$"))]
    pub limit: String,
    /// While one of these holds, agents only observe.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub pauses: Vec<Pause>,
    /// What is never cut.
    #[serde(default)]
    pub opt_outs: OptOuts,
}

impl Default for NodefenceSettingsSpec {
    fn default() -> Self {
        Self {
            mode: SettingsMode::default(),
            automatic: SettingsMode::default(),
            limit: default_limit(),
            pauses: Vec::new(),
            opt_outs: OptOuts::default(),
        }
    }
}

impl NodefenceSettingsSpec {
    /// The limit. `None` where it cannot be read, which the kind's rules do not let through.
    pub fn share(&self) -> Option<Share> {
        share(&self.limit)
    }
}

/// A part of the nodes as in `1/3`. `None` where the text is none.
pub(crate) fn share(text: &str) -> Option<Share> {
    let (part, of) = text.split_once('/')?;
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    Some(Share { part: number(part)?, of: number(of)? })
}

fn default_limit() -> String {
    "1/3".to_owned()
}

/// Whether claims are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettingsMode {
    /// Nothing is cut. For claims that no person made: they are only shown.
    Off,
    /// Agents count what they would cut.
    #[default]
    Observe,
    /// Agents cut.
    Enforce,
}

/// A time in which agents only observe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// Who wants it.
    #[schemars(length(min = 1, max = 253))]
    pub by: String,
    /// Why.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub reason: String,
    /// When it ends.
    #[serde(deserialize_with = "until")]
    pub until: Timestamp,
}

/// What is never cut.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OptOuts {
    /// Names of nodes to which traffic is never cut, whoever flags them.
    #[serde(default)]
    #[schemars(length(max = 5000), inner(length(max = 253)))]
    pub nodes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_numbers_of_a_limit_that_the_kind_lets_through_can_be_read() {
        let schema = serde_json::to_value(schemars::schema_for!(NodefenceSettingsSpec)).unwrap();
        let limit = &schema["properties"]["limit"];
        let longest = limit["maxLength"].as_u64().unwrap() as usize;
        let digits = "9".repeat((longest - 1) / 2);
        assert_eq!(limit["pattern"], format!("^[1-9][0-9]{{0,{0}}}/[1-9][0-9]{{0,{0}}}$", digits.len() - 1));
        let number = digits.parse().unwrap();
        assert_eq!(share(&format!("{digits}/{digits}")), Some(Share { part: number, of: number }));
    }
}
