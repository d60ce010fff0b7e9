//! What forwards Services in kube-proxy's place, and what this agent does beside it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{plan::Mode, proxy::Replacement};

/// What the agent does while another program forwards Services in place of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// The agent only observes because of the other program.
    Observes,
    /// The agent cuts all the same (`--force`).
    Forced,
    /// The agent observes in any case, because the mode is set to observe.
    Nothing,
}

/// A program that forwards Services in place of kube-proxy on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplacementRow {
    /// The name of the program.
    pub product: String,
    /// The device that shows that the program is here.
    pub device: String,
    /// What the agent does because of the program.
    pub beside: Beside,
    /// What the agent found and what it does about it, in one sentence.
    pub why: String,
    /// The command that deletes the device after the program was removed.
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
