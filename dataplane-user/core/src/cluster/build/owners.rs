//! Whose an address is. Each object claims addresses for nodes; what two nodes claim is neither's. Nothing here depends on who came first.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use foldhash::fast::RandomState;

use super::{
    super::node::NodeName,
    names::{Marked, NameId, Names},
};

/// What is worked out as one, a node or a Service with its slices; and who claims addresses beside these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Unit {
    Node(NodeName),
    Service(Arc<str>),
    /// The one that the agent runs on, which knows addresses of its own that no object names.
    Machine,
}

/// Who claims, beside the number of a name: of the node, the Service, or the node that the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Node,
    Service,
    Machine,
}

impl By {
    /// The one of that name.
    pub(super) const fn named(self, name: NameId) -> Marked {
        Marked::new(name, self as u8)
    }
}

/// As what an address is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As the node's own, or as that of something which shares its network.
    Shared,
    /// As that of a pod, or of something of which this is not said.
    Pod,
}

impl Kind {
    /// For the node of that name.
    pub(super) const fn of(self, node: NameId) -> Marked {
        Marked::new(node, self as u8)
    }
}

/// Whose an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This node's alone.
    Node {
        name: NameId,
        /// The node's own sockets have it too: only ports of it can be cut.
        shared: bool,
        /// A Service uses it of which too little is known to cut it.
        withheld: bool,
    },
    /// Claimed for these two nodes, and maybe for others.
    Disputed(NameId, NameId),
}

/// There is one for each endpoint: it is as small as can be.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// By whom ([`By`]).
    by: Marked,
    /// For whom ([`Kind`]). `None`: it is to be cut for nobody.
    of: Option<Marked>,
}

/// All addresses that are claimed. There is one for each endpoint, so that owners are worked out from claims rather than kept.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Of all that claims, and for whom.
    pub(super) names: Names,
    /// Some claim of an address: most have one for good.
    v4: HashMap<Ipv4Addr, Claim, RandomState>,
    v6: HashMap<Ipv6Addr, Claim, RandomState>,
    /// The other claims of an address that has several.
    others: HashMap<IpAddr, Vec<Claim>, RandomState>,
    /// What was claimed or taken back since it was last settled, and whose it was then.
    touched: HashMap<IpAddr, Option<Owner>, RandomState>,
}

impl Owners {
    /// How many addresses are claimed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len() + self.others.len()
    }

    /// Claims an address for a node, or for nobody.
    pub(super) fn claim(&mut self, ip: IpAddr, by: Marked, of: Option<Marked>) {
        self.touch(ip);
        let claim = Claim { by, of };
        if self.some(ip).is_some() {
            self.others.entry(ip).or_default().push(claim);
        } else {
            self.set_some(ip, Some(claim));
        }
    }

    /// Takes back all that somebody claims of an address.
    pub(super) fn release(&mut self, ip: IpAddr, by: Marked) {
        if self.some(ip).is_none() {
            return;
        }
        self.touch(ip);
        let mut left: Vec<Claim> = self.claims(ip).filter(|claim| claim.by != by).collect();
        self.set_some(ip, left.pop());
        if left.is_empty() {
            self.others.remove(&ip);
        } else {
            self.others.insert(ip, left);
        }
    }

    /// Decides what was claimed or taken back. Adds to `dirty` who claims an address whose owner is another one now.
    pub(super) fn settle(&mut self, dirty: &mut BTreeSet<Unit>) {
        for (ip, before) in std::mem::take(&mut self.touched) {
            if self.of(ip) != before {
                dirty.extend(self.claims(ip).map(|claim| self.unit(claim.by)));
            }
        }
    }

    /// Whose it is; `None` where no node claims it.
    pub(super) fn of(&self, ip: IpAddr) -> Option<Owner> {
        let claims = || self.claims(ip);
        let mut nodes = claims().filter_map(|claim| claim.of);
        let is_shared = |of: Marked| of.mark() == Kind::Shared as u8;
        let is_before = |one, other| self.names.text(one) < self.names.text(other);
        let of = nodes.next()?;
        let (mut first, mut second, mut shared) = (of.id(), None, is_shared(of));
        for of in nodes {
            shared |= is_shared(of);
            // The first two by name, whoever came first.
            if is_before(of.id(), first) {
                second = Some(std::mem::replace(&mut first, of.id()));
            } else if of.id() != first && second.is_none_or(|second| is_before(of.id(), second)) {
                second = Some(of.id());
            }
        }
        let withheld = claims().any(|claim| claim.of.is_none());
        Some(match second {
            None => Owner::Node { name: first, shared, withheld },
            Some(second) => Owner::Disputed(first, second),
        })
    }

    /// What is to be said where several nodes claim the address.
    pub(super) fn dispute(&self, owner: Owner, ip: IpAddr) -> Option<String> {
        match owner {
            Owner::Node { .. } => None,
            Owner::Disputed(first, second) => {
                let (first, second) = (self.names.text(first), self.names.text(second));
                Some(format!("{ip} is claimed for `{first}` and for `{second}`, and counts for neither"))
            }
        }
    }

    fn unit(&self, by: Marked) -> Unit {
        let name = Arc::clone(self.names.text(by.id()));
        match by.mark() {
            mark if mark == By::Node as u8 => Unit::Node(NodeName::from(name)),
            mark if mark == By::Service as u8 => Unit::Service(name),
            _ => Unit::Machine,
        }
    }

    fn touch(&mut self, ip: IpAddr) {
        if !self.touched.contains_key(&ip) {
            self.touched.insert(ip, self.of(ip));
        }
    }

    fn claims(&self, ip: IpAddr) -> impl Iterator<Item = Claim> + '_ {
        let others = self.others.get(&ip).into_iter().flatten().copied();
        self.some(ip).into_iter().chain(others)
    }

    fn some(&self, ip: IpAddr) -> Option<Claim> {
        match ip {
            IpAddr::V4(ip) => self.v4.get(&ip),
            IpAddr::V6(ip) => self.v6.get(&ip),
        }
        .copied()
    }

    fn set_some(&mut self, ip: IpAddr, claim: Option<Claim>) {
        match ip {
            IpAddr::V4(ip) => set(&mut self.v4, ip, claim),
            IpAddr::V6(ip) => set(&mut self.v6, ip, claim),
        }
    }
}

fn set<K: Eq + Hash>(of: &mut HashMap<K, Claim, RandomState>, ip: K, claim: Option<Claim>) {
    match claim {
        Some(claim) => of.insert(ip, claim),
        None => of.remove(&ip),
    };
}
