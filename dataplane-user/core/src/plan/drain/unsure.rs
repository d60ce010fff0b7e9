//! Destinations that kube-proxy may be draining too, although their weight of 0 is ours.
//!
//! Where an endpoint ends, kube-proxy sets its weight to 0 and waits until there are no connections. It does not look at the weight again
//! (`GracefulDeleteRS`, `deleteRsFunc`, pkg/proxy/ipvs/graceful_termination.go): a weight that we raise stays, and new clients go to a pod that is on its way
//! out. A view that is behind does not show this. So the weight of a destination with connections is restored only once the source confirmed a view after our
//! drain began: kube-proxy was not draining a destination that is an endpoint in that view.
use std::time::Duration;

use super::Drain;
use crate::{
    ipvs::{Destination, Protocol, ServiceKey},
    ledger::Pair,
};

/// Why a weight is not restored.
pub(super) const UNSURE: &str = "keeps weight 0 while it has connections: kube-proxy may be draining it, and the source of nodes has not confirmed \
     its endpoint since our drain began (a cluster file does when it is written or touched)";

impl Drain {
    /// The source confirmed at this time (CLOCK_MONOTONIC) the view that [`Drain::set_wanted`] was given last.
    pub fn confirm(&mut self, at: Duration) {
        if at <= self.confirmed {
            return;
        }
        self.confirmed = at;
        self.look_at_unsure();
        self.trust_raised();
    }

    /// This agent ends: from now on no weight waits for the source.
    pub fn end(&mut self) {
        self.ending = true;
        self.raised.clear();
        self.look_at_unsure();
    }

    /// Makes each destination that waited due, until a whole reading of its service has been looked at.
    fn look_at_unsure(&mut self) {
        for owned in self.owned.values_mut().filter(|owned| owned.waits == Some(UNSURE)) {
            owned.due = Duration::ZERO;
        }
    }

    /// Whether kube-proxy may be draining a destination of ours that is there.
    pub(super) fn is_unsure(&self, pair: &Pair, found: &Destination) -> bool {
        // kube-proxy removes UDP and SCTP destinations at once (`IsRsGracefulTerminationNeeded`, pkg/proxy/ipvs/util), and templates do not count.
        let drains = is_drained(pair.service) && found.weight == 0 && found.has_connections();
        drains
            && !self.ending
            && self.owned.get(pair).is_some_and(|owned| {
                // A destination that the view does not know is not kube-proxy's, or nobody can tell.
                owned.used
                    && owned.entry.original.weight != 0
                    && owned.since.is_none_or(|since| self.confirmed <= since)
            })
    }

    /// Whether a service's [unsure](Self::is_unsure) destinations may wait: only where the service has others meanwhile.
    pub(super) fn may_wait(&self, key: ServiceKey, found: &[Destination]) -> bool {
        let pair = |destination: &Destination| Pair { service: key, destination: destination.address };
        let is_unsure = |destination: &&Destination| self.is_unsure(&pair(destination), destination);
        if !found.iter().any(|destination| is_unsure(&destination)) {
            return false;
        }
        let is_of_other_node = |destination: &&Destination| self.node_of(&pair(destination)).is_none();
        let takes =
            |destination: &Destination| destination.weight > 0 || self.returns(&pair(destination), true);
        let sure = found.iter().filter(|destination| !is_unsure(destination));
        sure.filter(is_of_other_node).any(takes) || self.comes_back(key, found)
    }
}

/// Whether kube-proxy waits until a destination has no connections before it removes it.
pub(super) fn is_drained(key: ServiceKey) -> bool {
    matches!(key, ServiceKey::Address { protocol, .. } if protocol == Protocol::TCP)
}
