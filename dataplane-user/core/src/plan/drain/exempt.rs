//! A virtual service that is exempt from the drain.
use std::{collections::BTreeSet, time::Duration};

use crate::cluster::NodeName;

/// A service that is exempt: its destinations on flagged nodes are left in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExemptService {
    /// The flagged nodes.
    pub nodes: BTreeSet<NodeName>,
    /// Why the service is exempt.
    pub why: &'static str,
    pub(super) last: Duration,
}

impl ExemptService {
    pub(super) const NO_OTHERS: &'static str = "all its destinations are on flagged nodes";
    pub(super) const OTHERS_HAVE_NO_WEIGHT: &'static str = "its destinations on other nodes have weight 0";
}
