//! Settings that commands change while the agent runs: what it was started with, what holds, and who changed that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::SettingsRow;
use crate::{enforce::ChangedBy, plan::Mode};

/// A setting that commands can change while the agent runs. A change holds until the agent ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Setting_of_{T}")]
pub struct Adjusted<T> {
    /// The value that the agent was started with.
    pub started: T,
    /// The value that is set now.
    pub set: T,
    /// The last change of the value: who made it, and when. `None` if no command has changed the value.
    pub changed: Option<ChangedBy>,
}

/// Whether the agent cuts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModeReport {
    /// The mode in effect. It is `observe` also where `set` is `enforce`, while another program replaces kube-proxy or the view is too old.
    pub mode: Mode,
    /// The mode that is set.
    #[serde(flatten)]
    pub adjusted: Adjusted<Mode>,
    /// The settings for all agents of the cluster, which may make the mode in effect weaker. `None` if the source of nodes is no API server.
    #[serde(default)]
    pub settings: Option<SettingsRow>,
    /// Why nothing is cut although `set` is `enforce`, or why some packets are still cut although `set` is `observe`.
    pub warnings: Vec<String>,
}
