//! A destination whose weight was restored.
use std::time::Duration;

use super::expected::Endpoint;
use crate::cluster::NodeName;

/// A destination whose weight was restored, and of which kube-proxy may still turn out to drain it.
#[derive(Clone, Debug)]
pub(super) struct Raised {
    pub(super) node: NodeName,
    pub(super) weight: u32,
    /// When the weight was restored.
    pub(super) at: Duration,
    /// Where kube-proxy uses it no more, by the view: what the view says of it, and when to look at it.
    pub(super) left: Option<(Endpoint, Duration)>,
}

impl Raised {
    /// When to look at the destination.
    pub(super) fn due(&self) -> Option<Duration> {
        self.left.map(|(_, due)| due)
    }
}
