//! One destination that is drained and restored: how far it is, and when it goes on.
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::expected::Endpoint;
use crate::{
    ipvs::ServiceKey,
    ledger::{Entry, Pair, Phase},
};

/// Shortest time between deleting a destination and adding it again. The kernel begins to flush a tick after the deletion and walks the whole table of
/// connections (`ip_vs_enqueue_expire_nodest_conns`). The time doubles with each flush that left connections.
const FLUSH: Duration = Duration::from_millis(100);
/// Longest time between two tries. A connection that is held (`expire_later`, ip_vs_conn.c) goes away within a minute.
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Its weight is to be set to 0.
    Lowering,
    /// It has weight 0, and its connections stay for the moment.
    Draining,
    /// It is deleted, and its connections are being removed.
    Flushing { since: Duration },
    /// It has weight 0 and no connections.
    Resting,
    /// It is deleted for good.
    Gone,
}

/// A destination that the agent has drained and must restore.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) entry: Entry,
    pub(super) step: Step,
    /// When to look at the destination; `Duration::MAX` where only a change by others matters.
    pub(super) due: Duration,
    /// The kernel refused a change: no other is tried before this time.
    pub(super) not_before: Duration,
    /// How often the destination was flushed and had connections all the same.
    pub(super) rounds: u32,
    /// When the destination was flushed last.
    pub(super) flushed: Option<Duration>,
    pub(super) problem: Option<String>,
    /// Why the destination is not restored although its node is not flagged any more.
    pub(super) waits: Option<&'static str>,
    /// When its weight was last set to 0; `None`: by an earlier agent, and this one has not looked at it yet.
    pub(super) since: Option<Duration>,
    /// Whether kube-proxy uses its endpoint, by the view.
    pub(super) used: bool,
    /// Whether kube-proxy uses it no more, as far as is known: then its weight of 0 is not ours.
    pub(super) left: bool,
    /// The value of `left` in the ledger.
    pub(super) noted: bool,
}

impl Owned {
    pub(super) fn new(entry: Entry, step: Step) -> Self {
        Self {
            entry,
            step,
            due: Duration::ZERO,
            not_before: Duration::ZERO,
            rounds: 0,
            flushed: None,
            problem: None,
            waits: None,
            since: None,
            used: false,
            left: false,
            noted: false,
        }
    }

    /// Takes what the view says of its endpoint. Whether the endpoint has left since, or is back.
    pub(super) fn heed(&mut self, endpoint: Option<Endpoint>) -> bool {
        self.used = endpoint == Some(Endpoint::Used);
        let left = endpoint.is_some() && !self.used;
        std::mem::replace(&mut self.left, left) != left
    }

    /// The entry for the ledger. The guard, which restores without knowing the cluster, must give no weight to an endpoint that has left.
    pub(super) fn stored(&self) -> Entry {
        let mut entry = self.entry.clone();
        if self.noted {
            entry.original.weight = 0;
        }
        entry
    }

    /// A destination from the ledger: the next reading says how far it really is.
    pub(super) fn adopted(entry: Entry) -> Self {
        let step = match entry.phase {
            Phase::Lowered => Step::Lowering,
            // When it was deleted is not known, so the wait begins anew.
            Phase::Deleted => Step::Draining,
            Phase::Tombstone => Step::Resting,
        };
        Self::new(entry, step)
    }

    pub(super) fn shortest_wait(&self) -> Duration {
        FLUSH * 2_u32.pow(self.rounds.min(4))
    }

    /// When the destination may be flushed once more.
    pub(super) fn again(&self) -> Duration {
        match self.flushed {
            None => Duration::ZERO,
            Some(at) => at + (FLUSH * 2_u32.pow(self.rounds.min(16))).min(LONGEST),
        }
    }
}

/// The lower bound of all pairs of a service.
pub(super) fn first_of(key: ServiceKey) -> Pair {
    Pair { service: key, destination: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0) }
}
