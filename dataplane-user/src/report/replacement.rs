//! What forwards Services in kube-proxy's place, and what this agent does beside it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{plan::Mode, proxy::Replacement};

/// What the agent does beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// It only observes, because of it.
    Observes,
    /// It cuts all the same: `--force`.
    Forced,
    /// It observes in any case: mode observe.
    Nothing,
}

/// What forwards Services in kube-proxy's place on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplacementRow {
    /// What it is called.
    pub product: String,
    /// The device by which it was found.
    pub device: String,
    /// What the agent does beside it.
    pub beside: Beside,
    /// All of that in a sentence.
    pub why: String,
    /// How the device is deleted where the product is gone.
    pub remedy: String,
}

impl ReplacementRow {
    /// The row for an agent of this mode, with or without `--force`.
    pub fn new(found: Replacement, mode: Mode, force: bool) -> Self {
        let remedy = found.remedy();
        let Replacement { product, device, .. } = found;
        let (beside, what) = match (mode, force) {
            (Mode::Observe, _) => (Beside::Nothing, "in mode observe nothing is cut anyway".to_owned()),
            (Mode::Enforce, true) => (Beside::Forced, "it is cut all the same, as --force says".to_owned()),
            (Mode::Enforce, false) => (
                Beside::Observes,
                "nothing is cut, only counted, since what it balances would be misjudged; delete the device if it is left over, \
                 or start the agent with --force"
                    .to_owned(),
            ),
        };
        let why = format!("{product} forwards Services here (device {device}): {what}");
        Self { product: product.to_owned(), device: device.to_owned(), beside, why, remedy }
    }
}
