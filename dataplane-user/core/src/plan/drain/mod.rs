//! Drains a flagged node from IPVS, and restores it. Pure: readings and outcomes in, changes and ledger lines out.
//!
//! Only changes are made that kube-proxy leaves alone or that heal by themselves. First, every pair of service and destination gets weight 0. Then, once
//! idle clients have been challenged, the destination is deleted, so that the kernel flushes its connections and persistence templates
//! (`ip_vs_expire_nodest_conn_flush`, ip_vs_conn.c, Linux 5.9, where `expire_nodest_conn` is 1). Then it is added again with weight 0. kube-proxy adds missing
//! destinations with weight 1, and but for its first sync leaves the weight of existing ones alone (`syncEndpoint`, pkg/proxy/ipvs/proxier.go).
//! A destination that is added before the flush is through takes its connections back (`ip_vs_trash_get_dest`, ip_vs_ctl.c). So there is a
//! wait in between, and its counters are read afterwards.
//!
//! Every decision is taken with a fresh reading of the service at hand ([`Drain::look`]), which shows what others changed meanwhile.

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

/// How long after the flag TCP connections are left in place at most, so that idle clients can be challenged: IPVS translates a challenge by its connection,
/// and a client that was not challenged by then hears nothing. A round over 100,000 flows takes more than a second, and so does any round on an overloaded
/// machine.
pub const CHALLENGE: Duration = Duration::from_secs(5);
/// How soon a changed destination is looked at.
const SOON: Duration = Duration::from_millis(5);
/// How long a change that the kernel refused is not tried again.
const REFUSED: Duration = Duration::from_secs(1);
/// A service that was exempt is drained once it has had another destination for this long: endpoints come and go.
const SETTLED: Duration = Duration::from_secs(1);
/// For this long after a destination of ours is gone, its service is looked at as often as before: kube-proxy may add the destination again, or make the
/// service anew.
const WATCHED: Duration = Duration::from_secs(60);

/// A flagged node with what runs on it.
#[derive(Clone, Debug)]
pub struct Flagged {
    /// Its name.
    pub name: NodeName,
    /// Its backends.
    pub backends: Vec<Backend>,
    /// Ports of Services that are left out. Destinations there are not drained.
    pub left_out: Vec<Backend>,
    /// Whether its idle clients have been challenged, or will not be.
    pub challenged: bool,
}

/// The settings by which the tables are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrainSettings {
    /// Whether tables are changed; else the report only says what would be.
    pub enforce: bool,
    /// `net.ipv4.vs.expire_nodest_conn`: whether deleting a destination removes its connections. Without, none is deleted.
    pub flushes: bool,
}

/// How many connections to destinations conntrack still has.
pub type Counts = HashMap<Pair, usize>;

/// A change to make, and what must be written to the ledger before it.
#[derive(Clone, PartialEq, Debug)]
pub struct Act {
    /// The pair to change.
    pub pair: Pair,
    /// To be written before the change is made.
    pub before: Option<Record>,
    /// `None` where there is only something to write.
    pub change: Option<Change>,
    kind: Kind,
}

/// Kinds of acts, in the order in which these are made: changes that let traffic flow come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Restore,
    Forget,
    /// Only a line of the ledger to write.
    Note,
    Lower,
    /// Weight 0 again for a destination that should not have been restored.
    Recede,
    Bury,
    Delete,
    /// Delete a destination that is not ours any more.
    Remove,
}

#[derive(Debug)]
struct Node {
    name: NodeName,
    /// Since when the drain waits for the end of the challenges.
    since: Duration,
    challenged: bool,
}

/// The machine. `now` is CLOCK_MONOTONIC everywhere.
#[derive(Debug)]
pub struct Drain {
    settings: DrainSettings,
    nodes: Vec<Node>,
    /// Backends of flagged nodes, by the node's position in `nodes`.
    flagged: Backends<usize>,
    owned: BTreeMap<Pair, Owned>,
    /// Services whose destinations of ours are gone, and up to when they are looked at all the same.
    watched: BTreeMap<ServiceKey, Duration>,
    exempt: BTreeMap<ServiceKey, ExemptService>,
    wanted: WantedDestinations,
    /// When the source last confirmed the view of `wanted`.
    confirmed: Duration,
    /// Destinations whose weight was restored, as long as kube-proxy may have been draining them.
    raised: BTreeMap<Pair, Raised>,
    /// Whether the agent ends: all is restored, whatever the source says, since nobody will do it later.
    ending: bool,
    /// In observe mode: the destinations that would be drained, by the positions of their nodes.
    planned: BTreeMap<ServiceKey, Vec<usize>>,
}

impl Drain {
    /// Goes on from the entries of the ledger.
    pub fn new(settings: DrainSettings, entries: BTreeMap<Pair, Entry>) -> Self {
        Self {
            settings,
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

    /// Sets the settings. True where every service must be looked at: whether tables are changed has turned.
    pub fn set_settings(&mut self, settings: DrainSettings, now: Duration) -> bool {
        let turned = std::mem::replace(&mut self.settings, settings).enforce != settings.enforce;
        if turned {
            self.planned.clear();
            for owned in self.owned.values_mut() {
                owned.due = now;
            }
        }
        turned
    }

    /// Sets the destinations that kube-proxy wants.
    pub fn set_wanted(&mut self, wanted: WantedDestinations) {
        self.wanted = wanted;
        for (pair, owned) in &mut self.owned {
            if owned.heed(self.wanted.endpoint(pair)) {
                owned.due = Duration::ZERO;
            }
        }
        self.hold_raised();
    }

    /// Sets the flagged nodes. True where every service must be looked at: other nodes are flagged, or they have other backends.
    pub fn set_flagged(&mut self, flagged: &[Flagged], now: Duration) -> bool {
        let nodes = std::mem::take(&mut self.nodes);
        let before = std::mem::take(&mut self.flagged);
        for (at, node) in flagged.iter().enumerate() {
            // Where clients are to be challenged once more, the wait for that begins anew.
            let known =
                nodes.iter().find(|old| old.name == node.name && (!old.challenged || node.challenged));
            let since = known.map_or(now, |old| old.since);
            self.nodes.push(Node { name: node.name.clone(), since, challenged: node.challenged });
            for backend in &node.backends {
                self.flagged.add(backend, at);
            }
            node.left_out.iter().for_each(|port| self.flagged.spare(port));
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

    /// Services with destinations of ours, and those that had one until a moment ago.
    pub fn services(&mut self, now: Duration) -> BTreeSet<ServiceKey> {
        self.watched.retain(|_, until| *until > now);
        let owned = self.owned.keys().map(|pair| pair.service);
        owned.chain(self.watched.keys().copied()).chain(self.receding(now)).collect()
    }

    /// Whether there are services with destinations of ours, or that had one until a moment ago.
    pub fn has_services(&self) -> bool {
        !(self.owned.is_empty() && self.watched.is_empty())
    }

    /// Services with destinations of ours to look at now.
    pub fn due(&self, now: Duration) -> BTreeSet<ServiceKey> {
        let due = self.owned.iter().filter(|(_, owned)| owned.due <= now);
        due.map(|(pair, _)| pair.service).chain(self.receding(now)).collect()
    }

    /// When to look at the next destination.
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

    /// All destinations of ours.
    pub fn ours(&self) -> Vec<Pair> {
        self.owned.keys().copied().collect()
    }

    /// Whether no destination is ours.
    pub fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// How many destinations are ours.
    pub fn len(&self) -> usize {
        self.owned.len()
    }

    /// The destinations of ours, as the ledger has them.
    pub fn entries(&self) -> BTreeMap<Pair, Entry> {
        self.owned.iter().map(|(pair, owned)| (*pair, owned.stored())).collect()
    }

    /// Takes which of the services that the drain [`knows`](Self::knows) exist, so that the report says nothing of others.
    pub fn listed(&mut self, services: &BTreeSet<ServiceKey>) {
        self.exempt.retain(|key, _| services.contains(key));
        self.planned.retain(|key, _| services.contains(key));
    }

    /// Gives up a service that is not there.
    pub fn gone(&mut self, key: ServiceKey, acts: &mut Vec<Act>) {
        self.exempt.remove(&key);
        self.planned.remove(&key);
        self.raised.retain(|pair, _| pair.service != key);
        acts.extend(self.pairs_of(key).into_iter().map(|at| forget(Pair { service: key, destination: at })));
    }

    /// Looks at a service as it is now and adds the acts that are due.
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
        let take = self.may_take(key, found, now) && self.settings.enforce;
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
        if self.settings.enforce || planned.is_empty() {
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

    /// Whether a destination is on a flagged node. A service without such destinations, and of which nothing is known, need not be looked at.
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
