use std::collections::{BTreeMap, HashSet};

use super::{
    Drain,
    owned::{Owned, Step},
};
use crate::{
    cluster::NodeName,
    ipvs::{Protocol, ServiceKey},
    ledger::Pair,
};

/// How far a node is drained.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Pairs of service and destination that get no new connections and have none left.
    pub drained: usize,
    /// Pairs that get no new connections and whose connections are not gone yet.
    pub waiting: usize,
    /// Pairs that would be drained (observe mode).
    pub planned: usize,
    /// Exempt services, which keep their destinations on the node, and why.
    pub exempt: Vec<(ServiceKey, &'static str)>,
    /// What went wrong with a pair.
    pub problems: Vec<String>,
}

impl Drain {
    /// Pairs whose connections find another destination when they are begun anew. A repeated SYN of a connection to weight 0 is scheduled anew; a datagram
    /// only where the destination is gone, or was meanwhile (`ip_vs_in`, net/netfilter/ipvs/ip_vs_core.c; expire_nodest_conn).
    pub fn balanced(&self) -> HashSet<Pair> {
        let udp = |pair: &Pair| matches!(pair.service, ServiceKey::Address { protocol, .. } if protocol == Protocol::UDP);
        let is = |(pair, owned): &(&Pair, &Owned)| match owned.step {
            Step::Lowering => false,
            Step::Draining => !udp(pair),
            Step::Flushing { .. } | Step::Resting | Step::Gone => true,
        };
        self.owned.iter().filter(is).map(|(pair, _)| *pair).collect()
    }

    /// The reports, by node. A node that is not flagged any more is there as long as a destination of it is to be restored.
    pub fn report(&self) -> BTreeMap<NodeName, Report> {
        let mut all: BTreeMap<NodeName, Report> =
            self.nodes.iter().map(|node| (node.name.clone(), Report::default())).collect();
        for (pair, owned) in &self.owned {
            let row = all.entry(owned.entry.node.clone()).or_default();
            match owned.step {
                Step::Resting | Step::Gone => row.drained += 1,
                Step::Lowering | Step::Draining | Step::Flushing { .. } => row.waiting += 1,
            }
            let problems = owned.problem.as_deref().into_iter().chain(owned.waits);
            row.problems.extend(problems.map(|problem| format!("{pair}: {problem}")));
        }
        for (key, exempt) in &self.exempt {
            for node in &exempt.nodes {
                if let Some(row) = all.get_mut(node) {
                    row.exempt.push((*key, exempt.why));
                }
            }
        }
        for node in self.planned.values().flatten().filter_map(|at| self.nodes.get(*at)) {
            if let Some(row) = all.get_mut(&node.name) {
                row.planned += 1;
            }
        }
        all
    }
}
