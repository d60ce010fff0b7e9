//! Whose an address is. Each object claims addresses for nodes; what two nodes claim is neither's. Nothing here depends on who came first.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use foldhash::fast::RandomState;

use super::super::node::NodeName;

/// What is worked out as one, a node or a Service with its slices; and who claims addresses beside these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Unit {
    Node(NodeName),
    Service(Arc<str>),
    /// The one that the agent runs on, which knows addresses of its own that no object names.
    Machine,
}

/// As what an address is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As the node's own, or as that of something which shares its network.
    Shared,
    /// As that of a pod, or of something of which this is not said.
    Pod,
}

/// Whose an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This node's alone.
    Node {
        name: NodeName,
        /// The node's own sockets have it too: only ports of it can be cut.
        shared: bool,
        /// A Service uses it of which too little is known to cut it.
        withheld: bool,
    },
    /// Claimed for these two nodes, and maybe for others.
    Disputed(NodeName, NodeName),
}

#[derive(Clone, Debug)]
struct Claim {
    by: Unit,
    /// `None`: it is to be cut for nobody.
    of: Option<(NodeName, Kind)>,
}

/// All addresses that are claimed. There is one for each endpoint, so that owners are worked out from claims rather than kept.
#[derive(Debug, Default)]
pub(super) struct Owners {
    claims: HashMap<IpAddr, Vec<Claim>, RandomState>,
    /// What was claimed or taken back since it was last settled, and whose it was then.
    touched: HashMap<IpAddr, Option<Owner>, RandomState>,
}

impl Owners {
    /// Claims an address for a node, or for nobody.
    pub(super) fn claim(&mut self, ip: IpAddr, by: Unit, of: Option<(NodeName, Kind)>) {
        let claims = self.claims.entry(ip).or_default();
        self.touched.entry(ip).or_insert_with(|| decide(claims));
        // Most addresses have one claim for good.
        claims.reserve_exact(1);
        claims.push(Claim { by, of });
    }

    /// Takes back all that somebody claims of an address.
    pub(super) fn release(&mut self, ip: IpAddr, by: &Unit) {
        if let Some(claims) = self.claims.get_mut(&ip) {
            self.touched.entry(ip).or_insert_with(|| decide(claims));
            claims.retain(|claim| claim.by != *by);
        }
    }

    /// Decides what was claimed or taken back. Adds to `dirty` who claims an address whose owner is another one now.
    pub(super) fn settle(&mut self, dirty: &mut BTreeSet<Unit>) {
        for (ip, before) in std::mem::take(&mut self.touched) {
            let Some(claims) = self.claims.get_mut(&ip) else { continue };
            if decide(claims) != before {
                dirty.extend(claims.iter().map(|claim| claim.by.clone()));
            }
            if claims.is_empty() {
                self.claims.remove(&ip);
            }
        }
    }

    /// Whose it is; `None` where no node claims it.
    pub(super) fn of(&self, ip: IpAddr) -> Option<Owner> {
        decide(self.claims.get(&ip)?)
    }
}

fn decide(claims: &[Claim]) -> Option<Owner> {
    let mut nodes = claims.iter().filter_map(|claim| claim.of.as_ref());
    let (mut first, kind) = nodes.next()?.clone();
    let (mut second, mut shared) = (None, kind == Kind::Shared);
    for (name, kind) in nodes {
        shared |= *kind == Kind::Shared;
        // The first two by name, whoever came first.
        if *name < first {
            second = Some(std::mem::replace(&mut first, name.clone()));
        } else if *name != first && second.as_ref().is_none_or(|second| name < second) {
            second = Some(name.clone());
        }
    }
    let withheld = claims.iter().any(|claim| claim.of.is_none());
    Some(match second {
        None => Owner::Node { name: first, shared, withheld },
        Some(second) => Owner::Disputed(first, second),
    })
}

impl Owner {
    /// What is to be said where several nodes claim the address.
    pub(super) fn dispute(&self, ip: IpAddr) -> Option<String> {
        match self {
            Self::Node { .. } => None,
            Self::Disputed(first, second) => {
                Some(format!("{ip} is claimed for `{first}` and for `{second}`, and counts for neither"))
            }
        }
    }
}
