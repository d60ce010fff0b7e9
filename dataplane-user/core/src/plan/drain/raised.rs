//! What is known of a destination that was given a weight again.
use std::time::Duration;

use super::expected::Endpoint;
use crate::cluster::NodeName;

/// A destination that was given a weight again.
#[derive(Clone, Debug)]
pub(super) struct Raised {
    pub(super) node: NodeName,
    pub(super) weight: u32,
    /// When.
    pub(super) at: Duration,
    /// The view has it no more as one that kube-proxy uses: as what, and when it wants to be looked at.
    pub(super) left: Option<(Endpoint, Duration)>,
}

impl Raised {
    /// When it wants to be looked at.
    pub(super) fn due(&self) -> Option<Duration> {
        self.left.map(|(_, due)| due)
    }
}
