//! The pod that the agent runs in.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pod that the agent runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodRow {
    /// The UID of the pod.
    pub uid: String,
    /// When this pod took the node again: the agent of another pod had taken over, as in a rollout, and was gone. `None` if the pod did not have to.
    pub took_again: Option<Timestamp>,
}

impl PodRow {
    /// That the pod took the node again, in words.
    pub(crate) fn again(&self) -> Option<String> {
        let Self { uid, took_again } = self;
        let at = took_again.as_ref()?;
        Some(format!(
            "pod {uid} took this node again at {at}: the agent of the pod that had taken over was gone"
        ))
    }
}
