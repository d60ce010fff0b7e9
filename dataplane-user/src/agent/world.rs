//! What the agent knows and holds at one moment, for all who only read it.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::coverage::Coverage;
use crate::{
    cluster::{ClusterView, NodeName, NodeSet},
    dataplane::probe::Findings,
    flags::{Clocks, Flag, Flags},
    plan::{Indices, Keep, Slot},
    proxy::Judgement,
};

/// One moment. It never changes: whoever reads it clones the `Arc` and lets go.
///
/// A verdict is in it before it is written, and until it has been taken back: whoever gets a packet that was cut finds why.
#[derive(Clone)]
pub(super) struct World {
    /// Rises with each one that is made known.
    pub(super) epoch: u64,
    /// Who exists.
    pub(super) view: Arc<ClusterView>,
    /// When that was read.
    pub(super) loaded: Timestamp,
    /// Who has which place in the maps.
    pub(super) slots: Arc<Indices>,
    /// What is held against nodes. Of a flag that has ended since it says so itself.
    pub(super) flags: Arc<Flags>,
    /// Whose backends are cut.
    pub(super) enforced: Arc<BTreeMap<NodeName, Enforced>>,
    /// What is not cut though its node is.
    pub(super) exempt: Arc<Keep>,
    /// Which device leads to which backend.
    pub(super) coverage: Arc<Coverage>,
    /// How kube-proxy forwards.
    pub(super) proxy: Arc<Judgement>,
    /// What was found out about this kernel.
    pub(super) findings: Arc<Findings>,
}

/// A verdict that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Enforced {
    /// Where its node's entry is.
    pub(super) slot: Slot,
    /// Only rounds of asking that began from then on (CLOCK_MONOTONIC, ns) asked all of its clients.
    pub(super) ask_since: u64,
}

impl World {
    /// Verdicts in the map, and since when a round of asking counts for each.
    pub(super) fn enforced(
        armed: &BTreeMap<NodeName, Slot>,
        ask_since: &BTreeMap<NodeName, u64>,
    ) -> BTreeMap<NodeName, Enforced> {
        let since = |name| ask_since.get(name).copied().unwrap_or_default();
        armed
            .iter()
            .map(|(name, slot)| (name.clone(), Enforced { slot: *slot, ask_since: since(name) }))
            .collect()
    }

    /// Whether the node's backends are cut.
    pub(super) fn enforces(&self, node: &str) -> bool {
        self.enforced.contains_key(node)
    }

    /// Nodes of the view whose backends are cut.
    pub(super) fn enforced_nodes(&self) -> NodeSet {
        self.enforced.keys().filter_map(|name| self.view.index(name)).collect()
    }

    /// The flag that holds on a node.
    pub(super) fn flag_of(&self, node: &str, now: Clocks) -> Option<&Flag> {
        self.flags.get(node, now)
    }

    /// Whether it differs from another one in more than its number.
    pub(super) fn is_news_to(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.view, &other.view)
            && self.loaded == other.loaded
            && Arc::ptr_eq(&self.slots, &other.slots)
            && Arc::ptr_eq(&self.flags, &other.flags)
            && self.enforced == other.enforced
            && Arc::ptr_eq(&self.exempt, &other.exempt)
            && Arc::ptr_eq(&self.coverage, &other.coverage)
            && Arc::ptr_eq(&self.proxy, &other.proxy)
            && Arc::ptr_eq(&self.findings, &other.findings);
        !same
    }
}
