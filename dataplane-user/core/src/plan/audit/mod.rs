//! Every difference between the endpoints that kube-proxy ought to use and the kernel's tables. Pure: readings in, differences out.
//!
//! kube-proxy changes its tables all the time, and a change that it has not yet made is no fault: a [`Tracker`] says how long a difference has
//! been there. A difference can be a fault only where neither kube-proxy's graceful termination nor the drain's ledger explains it.

mod addresses;
mod affinity;
mod cidr;
mod client;
mod flagged;
mod flows;
mod kind;
mod servers;
mod syncs;
#[cfg(test)]
mod tests;
mod tracker;

use std::{collections::BTreeMap, fmt};

pub use addresses::Addresses;
pub use affinity::Affinities;
pub use cidr::Cidr;
pub use client::Client;
pub use flows::{MayDelete, StaleFlows};
pub use kind::{Kind, Part};
pub use servers::{Cluster, Servers};
pub use syncs::{Syncs, stale_syncs};
pub use tracker::{Observed, State, Tracker};

use crate::{
    conntrack::Flow,
    ipvs::{Change, ServiceKey},
    ledger::Pair,
};

/// What a difference is about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Subject {
    /// A destination of a virtual server, there or not.
    Pair(Pair),
    /// A virtual server, there or not.
    Server(ServiceKey),
    /// A conntrack entry: only the fields that identify it.
    Flow(Flow),
    /// A client that Service affinity keeps at an endpoint.
    Client(Client),
    /// kube-proxy itself, in this IP family; an empty name for all.
    KubeProxy(String),
}

impl Subject {
    /// A flow, without the fields that change while it lives.
    pub fn flow(flow: &Flow) -> Self {
        Self::Flow(Flow { tcp: None, liberal: false, status: 0, timeout: 0, ..*flow })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair(pair) => pair.fmt(f),
            Self::Server(key) => key.fmt(f),
            Self::Flow(flow) => flow.fmt(f),
            Self::Client(client) => client.fmt(f),
            Self::KubeProxy(family) if family.is_empty() => f.write_str("kube-proxy"),
            Self::KubeProxy(family) => write!(f, "kube-proxy {family}"),
        }
    }
}

/// When a difference counts as a fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Grace {
    /// Once kube-proxy has had two of its syncs.
    Sync,
    /// Once its graceful termination has looked twice (`rsCheckDeleteInterval`, pkg/proxy/ipvs/graceful_termination.go: one minute).
    Termination,
    /// Never: the connections end in order.
    Draining,
}

/// What mends a difference.
#[derive(Clone, PartialEq, Debug)]
pub enum Mend {
    /// A change of the IPVS tables.
    Ipvs(Change),
    /// This conntrack entry is deleted.
    Forget(Flow),
    /// kube-proxy forgets the client at this endpoint.
    ForgetClient,
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// Of what kind.
    pub kind: Kind,
    /// The subject of the difference.
    pub subject: Subject,
    /// Whose Service it is.
    pub service: Option<String>,
    /// What is wrong, in words.
    pub detail: String,
    /// When the difference counts.
    pub grace: Grace,
    /// What mends the difference; `None` where the agent does not.
    pub mend: Option<Mend>,
}

/// Most differences of one kind that a reading stores: where a watch has died every pair may differ.
pub(crate) const AT_MOST: usize = 4_096;

/// What a reading found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Found {
    /// At most `AT_MOST` of each kind.
    pub differences: Vec<Difference>,
    counts: BTreeMap<Kind, usize>,
}

impl Found {
    /// Adds a difference, if there is room.
    pub fn add(&mut self, kind: Kind, difference: impl FnOnce() -> Difference) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= AT_MOST {
            self.differences.push(difference());
        }
    }

    /// How many of each kind there was no room for.
    pub fn left_out(&self) -> BTreeMap<Kind, usize> {
        let over = self.counts.iter().map(|(kind, count)| (*kind, count.saturating_sub(AT_MOST)));
        over.filter(|(_, over)| *over > 0).collect()
    }
}
