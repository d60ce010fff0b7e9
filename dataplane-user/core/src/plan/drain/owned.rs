//! One destination on its way out and back: how far it is, and when it goes on.
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
/// connections (`ip_vs_enqueue_expire_nodest_conns`); it doubles with each time that connections were left.
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
    /// It stands there with weight 0 and without connections.
    Resting,
    /// It is deleted for good.
    Gone,
}

/// A destination that is ours to restore.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) entry: Entry,
    pub(super) step: Step,
    /// When it wants to be looked at; `Duration::MAX` where nothing but a change of others matters.
    pub(super) due: Duration,
    /// The kernel refused something: nothing before this.
    pub(super) not_before: Duration,
    /// How often it was flushed and had connections all the same.
    pub(super) rounds: u32,
    /// When that was last.
    pub(super) flushed: Option<Duration>,
    pub(super) problem: Option<String>,
    /// Why it is not restored though its node is not flagged any more.
    pub(super) waits: Option<&'static str>,
    /// When its weight was last set to 0; `None`: by an earlier agent, and it was not looked at since.
    pub(super) since: Option<Duration>,
    /// kube-proxy uses its endpoint, as the view has it.
    pub(super) used: bool,
    /// kube-proxy has no use for it any more, as far as is known: its weight of 0 is not ours then.
    pub(super) left: bool,
    /// What the ledger says of that.
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

    /// What the view says of its endpoint now. Whether it has left since, or is back.
    pub(super) fn heed(&mut self, endpoint: Option<Endpoint>) -> bool {
        self.used = endpoint == Some(Endpoint::Used);
        let left = endpoint.is_some() && !self.used;
        std::mem::replace(&mut self.left, left) != left
    }

    /// As the ledger has it: whoever restores it without knowing the cluster gives no weight to what has left.
    pub(super) fn stored(&self) -> Entry {
        let mut entry = self.entry.clone();
        if self.noted {
            entry.original.weight = 0;
        }
        entry
    }

    /// From the ledger: the next reading says how far it really is.
    pub(super) fn adopted(entry: Entry) -> Self {
        let step = match entry.phase {
            Phase::Lowered => Step::Lowering,
            // Since when is not known: the wait begins anew.
            Phase::Deleted => Step::Draining,
            Phase::Tombstone => Step::Resting,
        };
        Self::new(entry, step)
    }

    pub(super) fn shortest_wait(&self) -> Duration {
        FLUSH * 2_u32.pow(self.rounds.min(4))
    }

    /// When it may be flushed once more.
    pub(super) fn again(&self) -> Duration {
        match self.flushed {
            None => Duration::ZERO,
            Some(at) => at + (FLUSH * 2_u32.pow(self.rounds.min(16))).min(LONGEST),
        }
    }
}

/// Before every pair of a service.
pub(super) fn first_of(key: ServiceKey) -> Pair {
    Pair { service: key, destination: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0) }
}
