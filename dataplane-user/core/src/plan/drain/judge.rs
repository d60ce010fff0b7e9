//! Fail open: a service that would have no destination left is exempt.
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use super::{Drain, SETTLED, exempt::ExemptService};
use crate::{
    ipvs::{Destination, ServiceKey},
    ledger::{Pair, Phase},
};

impl Drain {
    /// The flagged node that a destination belongs to.
    pub(super) fn node_of(&self, pair: &Pair) -> Option<usize> {
        self.flagged.of_destination(&pair.service, pair.destination).copied()
    }

    /// Whether destinations of the service may be drained: it has others to send flows to. Where it has none, it is noted as exempt.
    pub(super) fn may_take(&mut self, key: ServiceKey, found: &[Destination], now: Duration) -> bool {
        let pair = |destination: &Destination| Pair { service: key, destination: destination.address };
        let flagged: BTreeSet<usize> =
            found.iter().filter_map(|destination| self.node_of(&pair(destination))).collect();
        let others = || found.iter().filter(|destination| self.node_of(&pair(destination)).is_none());
        let takes =
            |destination: &Destination| destination.weight > 0 || self.returns(&pair(destination), true);
        let usable = others().any(takes) || self.comes_back(key, found);
        if usable {
            match self.exempt.get(&key) {
                Some(exempt) if exempt.last + SETTLED > now => return false,
                Some(_) => drop(self.exempt.remove(&key)),
                None => {}
            }
            return true;
        }
        let why = if others().next().is_some() {
            ExemptService::OTHERS_HAVE_NO_WEIGHT
        } else {
            ExemptService::NO_OTHERS
        };
        if flagged.is_empty() {
            self.exempt.remove(&key);
        } else {
            let nodes = flagged.iter().map(|at| self.nodes[*at].name.clone()).collect();
            self.exempt.insert(key, ExemptService { nodes, why, last: now });
        }
        false
    }

    /// Whether a destination of ours is being restored at this very moment: it counts as there.
    pub(super) fn returns(&self, pair: &Pair, there: bool) -> bool {
        self.owned.get(pair).is_some_and(|owned| {
            owned.entry.original.weight > 0
                && !owned.left
                && owned.problem.is_none()
                && (there || owned.entry.phase == Phase::Deleted)
        })
    }

    /// Whether a destination that is not among `found`, all of a service, is being restored.
    pub(super) fn comes_back(&self, key: ServiceKey, found: &[Destination]) -> bool {
        let absent = |address: &SocketAddr| !found.iter().any(|destination| destination.address == *address);
        let pairs = self.pairs_of(key).into_iter().filter(absent);
        let mut pairs = pairs.map(|destination| Pair { service: key, destination });
        pairs.any(|pair| self.node_of(&pair).is_none() && self.returns(&pair, false))
    }
}
