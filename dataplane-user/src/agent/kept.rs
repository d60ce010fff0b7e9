//! What is kept in the map: there before the verdict that would cut it, and gone only after the one that needed it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nodefence_common::PortKey;

use super::{chain::chain, writer::Writer};
use crate::{
    cluster::{ClusterView, NodeIx, NodeSet, TrafficPolicy},
    plan::{self, Keep, KeepIndex, Why},
    proxy::Mode,
    report::KeptRow,
};

/// What is kept, and what of it the map holds.
#[derive(Debug, Default)]
pub(super) struct Kept {
    index: Arc<KeepIndex>,
    /// For which nodes of the view it is what must be kept; `None` where that is not settled.
    of: Option<NodeSet>,
    keep: Arc<Keep>,
    /// How kube-proxy forwards, where that is known.
    mode: Option<Mode>,
    /// What was written, and what an earlier agent left.
    there: BTreeSet<PortKey>,
}

impl Kept {
    /// `there`: what lies in the map.
    pub(super) fn new(view: &ClusterView, there: BTreeSet<PortKey>) -> Self {
        Self { index: Arc::new(KeepIndex::new(view)), there, ..Self::default() }
    }

    /// What must be kept, as last found out.
    pub(super) fn keep(&self) -> &Arc<Keep> {
        &self.keep
    }

    /// This is what lies in the map: what is missing is written again, and the rest let go, when verdicts are renewed.
    pub(super) fn found(&mut self, there: BTreeSet<PortKey>) {
        (self.there, self.of) = (there, None);
    }

    /// From now on this is the view's index.
    pub(super) fn set_index(&mut self, index: KeepIndex) {
        self.index = Arc::new(index);
        self.of = None;
    }

    /// From now on this is how kube-proxy forwards.
    pub(super) fn set_mode(&mut self, mode: Option<Mode>) {
        if self.mode != mode {
            self.mode = mode;
            self.of = None;
        }
    }

    /// Before verdicts on `bearers` are written: finds out what must be kept then, and writes what of it is missing. Gives the
    /// nodes whose verdict must not be written because that failed, and why.
    pub(super) fn begin(
        &mut self,
        view: &ClusterView,
        own_node: &str,
        bearers: &NodeSet,
        armed: &NodeSet,
        writer: &mut dyn Writer,
    ) -> BTreeMap<NodeIx, String> {
        if self.of.as_ref() == Some(bearers) {
            return BTreeMap::new();
        }
        self.of = None;
        self.keep = Arc::new(plan::keep(view, &self.index, own_node, self.mode, bearers));
        let mut failed = BTreeMap::new();
        for kept in self.keep.ports.keys() {
            for key in [kept.address_key(), kept.key()] {
                if self.there.contains(&key) {
                    continue;
                }
                match writer.keep(&key) {
                    Ok(()) => drop(self.there.insert(key)),
                    Err(error) => {
                        let why = format!("{} must be kept, which failed: {}", kept.backend(), chain(error));
                        failed.entry(kept.node).or_insert(why);
                    }
                }
            }
        }
        let Some(why) = failed.values().next() else { return failed };
        // It may be the new flags that ask for it: without them the older ones go on as they are.
        let new: BTreeMap<NodeIx, String> =
            bearers.difference(armed).map(|node| (node, why.clone())).collect();
        if new.is_empty() { failed } else { new }
    }

    /// After the verdicts on `bearers` were written, and all others taken back: lets go of what need not be kept any more.
    pub(super) fn end(&mut self, bearers: NodeSet, writer: &mut dyn Writer) {
        if self.of.as_ref() == Some(&bearers) {
            return;
        }
        let wanted = self.keep.keys();
        let gone: Vec<PortKey> = self.there.difference(&wanted).copied().collect();
        let mut whole = true;
        for key in gone {
            match writer.let_go(&key) {
                Ok(()) => drop(self.there.remove(&key)),
                // Tried again at the next renewal. Meanwhile it passes.
                Err(_) => whole = false,
            }
        }
        self.of = whole.then_some(bearers);
    }
}

/// What is kept and why, for `status`.
pub(super) fn rows<'a>(view: &'a ClusterView, keep: &'a Keep) -> impl Iterator<Item = KeptRow> + 'a {
    keep.ports.iter().filter_map(|(kept, reason)| {
        let service = view.services.as_ref()?.get(reason.service as usize)?;
        let port = &service.ports.get(reason.port as usize)?;
        let name = if port.name.is_empty() { port.port.to_string() } else { port.name.clone() };
        let why = match reason.why {
            Why::NothingElse(TrafficPolicy::Cluster) => {
                format!("all that port {name} of {} may use here is on flagged nodes", service.name)
            }
            Why::NothingElse(TrafficPolicy::Local) => {
                format!("all local endpoints of port {name} of {} are on flagged nodes", service.name)
            }
            Why::Untied => format!("port {name} of {} names it without a node", service.name),
        };
        Some(KeptRow {
            node: view.at(kept.node)?.name.to_string(),
            address: kept.address,
            port: kept.port,
            protocol: kept.protocol,
            service: service.name.clone(),
            why,
        })
    })
}
