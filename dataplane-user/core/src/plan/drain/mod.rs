//! Taking a flagged node's destinations out of IPVS, and putting them back. Pure: readings and outcomes in, changes and ledger lines out.
//!
//! The moves are those that kube-proxy leaves alone or that heal by themselves: weight 0 first, on every pair; then, once idle clients have
//! been challenged, the destination is deleted, so that the kernel flushes its connections and persistence templates
//! (`ip_vs_expire_nodest_conn_flush`, ip_vs_conn.c, Linux 5.9, where `expire_nodest_conn` is 1); then it is added again with weight 0. kube-proxy adds what is
//! missing with weight 1, and leaves the weight of what is there alone but for its first sync (`syncEndpoint`, pkg/proxy/ipvs/proxier.go).
//! A destination that is added before the flush is through takes its connections back (`ip_vs_trash_get_dest`, ip_vs_ctl.c), so there is a
//! wait in between, and its counters are read afterwards.
//!
//! Every decision is taken with a fresh reading of the service at hand ([`Drain::look`]); what others changed meanwhile is found there.

mod exempt;
mod expected;
#[cfg(test)]
mod expected_tests;
mod hash;
mod judge;
mod outcome;
mod owned;
mod raised;
mod recede;
mod report;
mod steps;
mod undo;
mod unsure;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    time::Duration,
};

pub use exempt::ExemptService;
pub use expected::WantedDestinations;
pub use report::Report;
pub use undo::undo;

use crate::{
    cluster::{Backend, Backends, NodeName},
    ipvs::{Change, Destination, Service, ServiceKey},
    ledger::{Entry, Pair, Record},
};
use hash::Hashing;
use owned::{Owned, Step};
use raised::Raised;

/// Up to so long after the flag TCP connections are left in place, so that idle clients can be challenged for their numbers: the question is
/// translated by the connection, and whoever was not challenged by then hears nothing. A round over 100,000 flows takes more than a second, and so does
/// any on a machine that has too much to do.
pub const CHALLENGE: Duration = Duration::from_secs(5);
/// How soon what was changed is looked at.
const SOON: Duration = Duration::from_millis(5);
/// How long a change that the kernel refused is not tried again.
const REFUSED: Duration = Duration::from_secs(1);
/// A service that was exempt whole is drained once it has had another destination for so long: endpoints come and go.
const SETTLED: Duration = Duration::from_secs(1);
/// So long after something of ours is gone its service is looked at as often as if it were still there: kube-proxy adds again what it removed, and makes
/// services anew.
const WATCHED: Duration = Duration::from_secs(60);

/// A flagged node with what runs on it.
#[derive(Clone, Debug)]
pub struct Flagged {
    /// Its name.
    pub name: NodeName,
    /// Its backends.
    pub backends: Vec<Backend>,
    /// Whether its idle clients have been challenged, or will not be.
    pub challenged: bool,
}

/// What the kernel is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ground {
    /// Whether tables are changed; else it is only reported what would be.
    pub enforce: bool,
    /// `net.ipv4.vs.expire_nodest_conn`: whether deleting a destination removes its connections. Without, none is deleted.
    pub flushes: bool,
}

/// How many connections to destinations conntrack still has.
pub type Counts = HashMap<Pair, usize>;

/// A change to make, and what the ledger must say before.
#[derive(Clone, PartialEq, Debug)]
pub struct Act {
    /// What it is about.
    pub pair: Pair,
    /// To be written before the change is made.
    pub before: Option<Record>,
    /// `None` where there is only something to write.
    pub change: Option<Change>,
    kind: Kind,
}

/// In the order in which they are made: what lets traffic flow comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Restore,
    Forget,
    /// Only to be written.
    Note,
    Lower,
    /// Weight 0 again for what was not to be raised.
    Recede,
    Bury,
    Delete,
    /// What is not ours any more.
    Remove,
}

#[derive(Debug)]
struct Node {
    name: NodeName,
    /// Since when it is waited for the end of the asking.
    since: Duration,
    challenged: bool,
}

/// The machine. `now` is CLOCK_MONOTONIC everywhere.
#[derive(Debug)]
pub struct Drain {
    ground: Ground,
    nodes: Vec<Node>,
    /// Backends of flagged nodes, by the node's position in `nodes`.
    flagged: Backends<usize>,
    owned: BTreeMap<Pair, Owned>,
    /// Services that something of ours is gone from, and up to when they are looked at all the same.
    watched: BTreeMap<ServiceKey, Duration>,
    exempt: BTreeMap<ServiceKey, ExemptService>,
    wanted: WantedDestinations,
    /// When the source last said that it is as `wanted` has it.
    confirmed: Duration,
    /// Destinations that were given a weight again, as long as it is not certain that kube-proxy was not draining them.
    raised: BTreeMap<Pair, Raised>,
    /// All is restored, whatever the source says: nobody will do it later.
    ending: bool,
    /// Observe mode: what would be taken.
    planned: BTreeMap<ServiceKey, Vec<usize>>,
}

impl Drain {
    /// Goes on with what the ledger says.
    pub fn new(ground: Ground, entries: BTreeMap<Pair, Entry>) -> Self {
        Self {
            ground,
            nodes: Vec::new(),
            flagged: Backends::new(),
            owned: entries.into_iter().map(|(pair, entry)| (pair, Owned::adopted(entry))).collect(),
            watched: BTreeMap::new(),
            exempt: BTreeMap::new(),
            wanted: WantedDestinations::default(),
            confirmed: Duration::ZERO,
            raised: BTreeMap::new(),
            ending: false,
            planned: BTreeMap::new(),
        }
    }

    /// What the kernel is set to now. True where every service must be looked at: tables are changed that were not, or the other way round.
    pub fn set_ground(&mut self, ground: Ground, now: Duration) -> bool {
        let turned = std::mem::replace(&mut self.ground, ground).enforce != ground.enforce;
        if turned {
            self.planned.clear();
            for owned in self.owned.values_mut() {
                owned.due = now;
            }
        }
        turned
    }

    /// What kube-proxy wants now.
    pub fn set_wanted(&mut self, wanted: WantedDestinations) {
        self.wanted = wanted;
        for (pair, owned) in &mut self.owned {
            if owned.heed(self.wanted.endpoint(pair)) {
                owned.due = Duration::ZERO;
            }
        }
        self.hold_raised();
    }

    /// Who is flagged now. True where every service must be looked at: other nodes are flagged, or they have other backends.
    pub fn set_flagged(&mut self, flagged: &[Flagged], now: Duration) -> bool {
        let nodes = std::mem::take(&mut self.nodes);
        let before = std::mem::take(&mut self.flagged);
        for (at, node) in flagged.iter().enumerate() {
            // Where clients are to be challenged once more, that is waited for anew.
            let known =
                nodes.iter().find(|old| old.name == node.name && (!old.challenged || node.challenged));
            let since = known.map_or(now, |old| old.since);
            self.nodes.push(Node { name: node.name.clone(), since, challenged: node.challenged });
            for backend in &node.backends {
                self.flagged.add(backend, at);
            }
        }
        let names = nodes.iter().map(|node| &node.name).eq(self.nodes.iter().map(|node| &node.name));
        let same = names && before == self.flagged;
        if !same {
            self.planned.clear();
        }
        if !same || nodes.iter().map(|node| node.challenged).ne(self.nodes.iter().map(|node| node.challenged))
        {
            for owned in self.owned.values_mut() {
                owned.due = now;
            }
        }
        if self.nodes.is_empty() {
            self.watched.clear();
        }
        !same
    }

    /// Services with something of ours, and those that had something until a moment ago.
    pub fn services(&mut self, now: Duration) -> BTreeSet<ServiceKey> {
        self.watched.retain(|_, until| *until > now);
        let owned = self.owned.keys().map(|pair| pair.service);
        owned.chain(self.watched.keys().copied()).chain(self.receding(now)).collect()
    }

    /// Whether there are any.
    pub fn has_services(&self) -> bool {
        !(self.owned.is_empty() && self.watched.is_empty())
    }

    /// Those with something of ours that wants to be looked at now.
    pub fn due(&self, now: Duration) -> BTreeSet<ServiceKey> {
        let due = self.owned.iter().filter(|(_, owned)| owned.due <= now);
        due.map(|(pair, _)| pair.service).chain(self.receding(now)).collect()
    }

    /// When the next one wants to be.
    pub fn next_due(&self) -> Option<Duration> {
        let owned = self.owned.values().map(|owned| owned.due).filter(|due| *due != Duration::MAX);
        owned.chain(self.raised.values().filter_map(|raised| raised.due())).min()
    }

    /// Deleted pairs that are added again as soon as conntrack has none of their connections left.
    pub fn flushing(&self, now: Duration) -> Vec<Pair> {
        let waits = |owned: &Owned| match owned.step {
            Step::Flushing { since } => now >= since + owned.shortest_wait(),
            _ => false,
        };
        self.owned.iter().filter(|(_, owned)| waits(owned)).map(|(pair, _)| *pair).collect()
    }

    /// All that is ours.
    pub fn ours(&self) -> Vec<Pair> {
        self.owned.keys().copied().collect()
    }

    /// Whether anything is ours.
    pub fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// How many destinations are ours.
    pub fn len(&self) -> usize {
        self.owned.len()
    }

    /// What is ours, as the ledger has it.
    pub fn entries(&self) -> BTreeMap<Pair, Entry> {
        self.owned.iter().map(|(pair, owned)| (*pair, owned.stored())).collect()
    }

    /// Told which services there are of those that it [`knows`](Self::knows), so that nothing is said of others.
    pub fn listed(&mut self, services: &BTreeSet<ServiceKey>) {
        self.exempt.retain(|key, _| services.contains(key));
        self.planned.retain(|key, _| services.contains(key));
    }

    /// A service that is not there.
    pub fn gone(&mut self, key: ServiceKey, acts: &mut Vec<Act>) {
        self.exempt.remove(&key);
        self.planned.remove(&key);
        self.raised.retain(|pair, _| pair.service != key);
        acts.extend(self.pairs_of(key).into_iter().map(|at| forget(Pair { service: key, destination: at })));
    }

    /// Looks at a service as it is now and adds what is to be done about it.
    pub fn look(
        &mut self,
        service: &Service,
        found: &[Destination],
        counts: Option<&Counts>,
        now: Duration,
        acts: &mut Vec<Act>,
    ) {
        let key = service.key;
        let pair = |destination: &Destination| Pair { service: key, destination: destination.address };
        let take = self.may_take(key, found, now) && self.ground.enforce;
        let hashing = Hashing::of(service);
        let waits = self.may_wait(key, found);
        let mut planned = Vec::new();
        for destination in found {
            let pair = pair(destination);
            let node = self.node_of(&pair);
            let wanted = node.filter(|_| take);
            if let Some(note) = self.note(&pair, now) {
                acts.push(note);
                continue;
            }
            match (self.owned.contains_key(&pair), wanted) {
                (true, Some(node)) => acts.extend(self.advance(&pair, destination, node, hashing, now)),
                (true, None) => acts.extend(self.restore(&pair, Some(destination), waits, now)),
                (false, Some(node)) => acts.extend(self.take(pair, destination, node, hashing, now)),
                (false, None) => {
                    acts.extend(self.recede(&pair, destination, found, now));
                    planned.extend(node.filter(|_| !self.exempt.contains_key(&key)));
                }
            }
        }
        self.forget_raised(key, found, now);
        if self.ground.enforce || planned.is_empty() {
            self.planned.remove(&key);
        } else {
            self.planned.insert(key, planned);
        }
        for at in self.pairs_of(key) {
            if found.iter().any(|destination| destination.address == at) {
                continue;
            }
            let pair = Pair { service: key, destination: at };
            let act = if let Some(note) = self.note(&pair, now) {
                Some(note)
            } else if take && self.node_of(&pair).is_some() {
                self.missing(&pair, hashing, counts, now)
            } else {
                self.restore(&pair, None, waits, now)
            };
            acts.extend(act);
        }
    }

    /// Puts acts into the order in which they are made.
    pub fn sort(acts: &mut [Act]) {
        acts.sort_by_key(|act| (act.kind, act.pair));
    }

    /// Whether a destination is on a flagged node. A service that has none, and of which nothing is known, need not be looked at.
    pub fn concerns(&self, service: &ServiceKey, destination: SocketAddr) -> bool {
        self.flagged.of_destination(service, destination).is_some()
    }

    /// Whether anything is known of a service.
    pub fn knows(&self, key: ServiceKey) -> bool {
        let mut owned = self.owned.range(owned::first_of(key)..);
        owned.next().is_some_and(|(pair, _)| pair.service == key)
            || self.exempt.contains_key(&key)
            || self.planned.contains_key(&key)
    }

    fn pairs_of(&self, key: ServiceKey) -> Vec<SocketAddr> {
        let of_service = self.owned.range(owned::first_of(key)..).take_while(|(pair, _)| pair.service == key);
        of_service.map(|(pair, _)| pair.destination).collect()
    }
}

fn forget(pair: Pair) -> Act {
    Act { pair, before: None, change: None, kind: Kind::Forget }
}
