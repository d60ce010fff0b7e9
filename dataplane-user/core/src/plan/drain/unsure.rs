//! What kube-proxy may be draining on its own account, though its weight of 0 is ours.
//!
//! Where an endpoint ends, kube-proxy sets its weight to 0 and waits until there are no connections. It does not look at the weight again
//! (`GracefulDeleteRS`, `deleteRsFunc`, pkg/proxy/ipvs/graceful_termination.go): one that we raise stays, and new clients go to a pod that is on its way out.
//! A view that is behind does not tell. So with connections a weight waits for one that its source confirmed after our drain began: what is an endpoint there
//! kube-proxy was not draining before.
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
    /// The source said then (CLOCK_MONOTONIC) that it is as [`Drain::set_wanted`] was told last.
    pub fn confirm(&mut self, at: Duration) {
        if at <= self.confirmed {
            return;
        }
        self.confirmed = at;
        self.look_at_unsure();
        self.trust_raised();
    }

    /// This agent ends: from now on nothing waits for the source.
    pub fn end(&mut self) {
        self.ending = true;
        self.raised.clear();
        self.look_at_unsure();
    }

    /// Each of those that waited is due until a whole reading of its service has been looked at.
    fn look_at_unsure(&mut self) {
        for owned in self.owned.values_mut().filter(|owned| owned.waits == Some(UNSURE)) {
            owned.due = Duration::ZERO;
        }
    }

    /// Whether kube-proxy may be draining a destination of ours that is there.
    pub(super) fn is_unsure(&self, pair: &Pair, found: &Destination) -> bool {
        // UDP and SCTP it removes at once (`IsRsGracefulTerminationNeeded`, pkg/proxy/ipvs/util), and templates do not count.
        let drains = is_drained(pair.service) && found.weight == 0 && found.has_connections();
        drains
            && !self.ending
            && self.owned.get(pair).is_some_and(|owned| {
                // What the view does not know is nothing of kube-proxy's, or nobody can tell.
                owned.used
                    && owned.entry.original.weight != 0
                    && owned.since.is_none_or(|since| self.confirmed <= since)
            })
    }

    /// Whether what is [unsure](Self::is_unsure) of a service may wait: only where it has somebody else meanwhile.
    pub(super) fn may_wait(&self, key: ServiceKey, found: &[Destination]) -> bool {
        let pair = |destination: &Destination| Pair { service: key, destination: destination.address };
        let is_unsure = |destination: &&Destination| self.is_unsure(&pair(destination), destination);
        if !found.iter().any(|destination| is_unsure(&destination)) {
            return false;
        }
        let mut others = found.iter().filter(|d| !is_unsure(d)).filter(|d| self.node_of(&pair(d)).is_none());
        others.any(|d| d.weight > 0 || self.returns(&pair(d), true)) || self.comes_back(key, found)
    }
}

/// Whether kube-proxy waits until a destination has no connections before it removes it.
pub(super) fn is_drained(key: ServiceKey) -> bool {
    matches!(key, ServiceKey::Address { protocol, .. } if protocol == Protocol::TCP)
}
