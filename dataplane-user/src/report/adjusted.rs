//! Settings that commands change while the agent runs: what it was started with, what holds, and who changed that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{enforce::ChangedBy, plan::Mode};

/// A setting that commands change. What they say holds until the agent ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Adjusted<T> {
    /// What the agent was started with.
    pub started: T,
    /// What is set now.
    pub set: T,
    /// Who changed it last; `None` where nobody did.
    pub changed: Option<ChangedBy>,
}

/// Whether the agent cuts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModeReport {
    /// As what claims are carried out at most: the weaker of what is set and of what else keeps the agent from cutting.
    pub mode: Mode,
    /// What is set.
    #[serde(flatten)]
    pub adjusted: Adjusted<Mode>,
    /// Why nothing is cut though `set` is enforce, or something is though it is observe.
    pub warnings: Vec<String>,
}
