//! Which node owns an address. Each object claims addresses for nodes; an address that two nodes claim is neither's. Nothing here depends on the order in
//! which objects came.

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

/// A unit that is worked out as one: a node, or a Service with its slices. Also the machine, which claims addresses beside these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Unit {
    Node(NodeName),
    Service(Arc<str>),
    /// The machine on which the agent runs: it has addresses that no object names.
    Machine,
}

/// The kind of a claimant, stored beside the number of a name: that of the node, of the Service, or of the machine's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Node,
    Service,
    Machine,
    /// A Service with an endpoint that names no node. It claims nothing, and is worked out anew once the address has another owner.
    Follower,
}

impl By {
    /// The claimant of this name.
    pub(super) const fn named(self, name: NameId) -> Marked {
        Marked::new(name, self as u8)
    }
}

/// The kind of address that is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The node's own address, or that of something which shares its network.
    Shared,
    /// The address of a pod, or of something of which this is not known.
    Pod,
}

impl Kind {
    /// The claim for the node of this name.
    pub(super) const fn of(self, node: NameId) -> Marked {
        Marked::new(node, self as u8)
    }
}

/// The owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressOwner {
    /// One node alone.
    Node {
        name: NameId,
        /// Whether the node's own sockets have the address too: then only ports of it can be cut.
        shared: bool,
        /// Whether the node's object itself says so. A machine also has addresses of Services, which no node has for its own.
        named: bool,
        /// Whether a Service uses the address of which too little is known to cut it.
        withheld: bool,
    },
    /// Nobody: the address is claimed for these two nodes, and maybe for others.
    Disputed(NameId, NameId),
}

/// A claim of an address. It is as small as can be, since there is one for each endpoint.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The claimant ([`By`]).
    by: Marked,
    /// The node for which the address is claimed ([`Kind`]). `None`: the address is to be cut for no node, unless the claimant is a
    /// [`By::Follower`].
    of: Option<Marked>,
}

impl Claim {
    /// Whether the address is to be cut for no node.
    fn withholds(self) -> bool {
        self.of.is_none() && self.by.mark() != By::Follower as u8
    }
}

/// All addresses that are claimed. There is one for each endpoint, so owners are worked out from claims rather than stored.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Names of all claimants, and of the nodes for which they claim.
    pub(super) names: Names,
    /// One claim of each address: most addresses have one for good.
    v4: HashMap<Ipv4Addr, Claim, RandomState>,
    v6: HashMap<Ipv6Addr, Claim, RandomState>,
    /// The other claims of an address that has several.
    others: HashMap<IpAddr, Vec<Claim>, RandomState>,
    /// Addresses that were claimed or released since the last [`Self::settle`], and their owners then.
    touched: HashMap<IpAddr, Option<AddressOwner>, RandomState>,
}

impl Owners {
    /// How many addresses are claimed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len() + self.others.len()
    }

    /// Claims an address for a node, or for none.
    pub(super) fn claim(&mut self, ip: IpAddr, by: Marked, of: Option<Marked>) {
        self.touch(ip);
        let claim = Claim { by, of };
        if self.some(ip).is_some() {
            self.others.entry(ip).or_default().push(claim);
        } else {
            self.set_some(ip, Some(claim));
        }
    }

    /// Releases all claims of a claimant on an address.
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

    /// Decides on addresses that were claimed or released. Adds to `dirty` the claimants of addresses whose owner changed.
    pub(super) fn settle(&mut self, dirty: &mut BTreeSet<Unit>) {
        for (ip, before) in std::mem::take(&mut self.touched) {
            if self.of(ip) != before {
                dirty.extend(self.claims(ip).map(|claim| self.unit(claim.by)));
            }
        }
    }

    /// The owner of an address; `None` where no node claims it.
    pub(super) fn of(&self, ip: IpAddr) -> Option<AddressOwner> {
        let claims = || self.claims(ip);
        let mut nodes = claims().filter_map(|claim| claim.of);
        let is_shared = |of: Marked| of.mark() == Kind::Shared as u8;
        let is_before = |one, other| self.names.text(one) < self.names.text(other);
        let of = nodes.next()?;
        let mut first = of.id();
        let mut second = None;
        let mut shared = is_shared(of);
        for of in nodes {
            shared |= is_shared(of);
            // The first two by name, in whatever order they came.
            if is_before(of.id(), first) {
                second = Some(std::mem::replace(&mut first, of.id()));
            } else if of.id() != first && second.is_none_or(|second| is_before(of.id(), second)) {
                second = Some(of.id());
            }
        }
        let withheld = claims().any(Claim::withholds);
        let named =
            claims().any(|claim| claim.by.mark() == By::Node as u8 && claim.of.is_some_and(is_shared));
        Some(match second {
            None => AddressOwner::Node { name: first, shared, named, withheld },
            Some(second) => AddressOwner::Disputed(first, second),
        })
    }

    /// The conflict's text where several nodes claim the address.
    pub(super) fn dispute(&self, owner: AddressOwner, ip: IpAddr) -> Option<String> {
        match owner {
            AddressOwner::Node { .. } => None,
            AddressOwner::Disputed(first, second) => {
                let first = self.names.text(first);
                let second = self.names.text(second);
                Some(format!("{ip} is claimed for `{first}` and for `{second}`, and counts for neither"))
            }
        }
    }

    fn unit(&self, by: Marked) -> Unit {
        let name = Arc::clone(self.names.text(by.id()));
        match by.mark() {
            mark if mark == By::Node as u8 => Unit::Node(NodeName::from(name)),
            mark if mark == By::Machine as u8 => Unit::Machine,
            _ => Unit::Service(name),
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
