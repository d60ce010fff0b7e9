//! What must be written to get from one set of tables to another, and in which order.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use nodefence_common::{Addr, BackendEntry, PortKey};

use super::{NodePart, NodeTables, Tables};

/// The changes in one map.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changes<K, V> {
    /// Keys that must not lie there any more.
    gone: Vec<K>,
    /// Entries that must lie there, with whether their key lies there with another value.
    put: Vec<(K, V, bool)>,
}

impl<K: Copy + Ord + Hash, V: Copy + PartialEq> Changes<K, V> {
    /// `left_out`: keys of `before` that do not lie there.
    fn between(before: &HashMap<K, V>, left_out: &BTreeSet<K>, after: &HashMap<K, V>) -> Self {
        let lies = |key: &K| !left_out.contains(key);
        let mut put = Vec::new();
        let mut stay = 0;
        for (key, value) in after {
            let there = before.get(key).filter(|_| lies(key));
            stay += usize::from(there.is_some());
            if there != Some(value) {
                put.push((*key, *value, there.is_some()));
            }
        }
        // There may be hundreds of thousands of keys: where all that lie there stay, none is gone, and none is looked up.
        let gone = match stay + left_out.len() == before.len() {
            true => Vec::new(),
            false => before.keys().filter(|key| !after.contains_key(*key) && lies(key)).copied().collect(),
        };
        Self { gone, put }
    }
}

/// The entries that nodes lost and gained.
struct Moves<K, V> {
    lost: BTreeMap<K, V>,
    gained: Vec<(K, V)>,
    put: Vec<(K, V, bool)>,
}

impl<K: Copy + Ord, V: Copy + PartialEq> Moves<K, V> {
    const fn new() -> Self {
        Self { lost: BTreeMap::new(), gained: Vec::new(), put: Vec::new() }
    }

    /// Notes what one node lost and gained. Both lists are sorted, each key once.
    fn note(&mut self, before: &[(K, V)], after: &[(K, V)]) {
        let mut before = before.iter().peekable();
        for (key, value) in after {
            while let Some((lost, value)) = before.next_if(|(old, _)| old < key) {
                self.lost.insert(*lost, *value);
            }
            match before.next_if(|(old, _)| old == key) {
                None => self.gained.push((*key, *value)),
                Some((_, old)) if old != value => self.put.push((*key, *value, true)),
                Some(_) => {}
            }
        }
        self.lost.extend(before.copied());
    }

    /// The changes of the map: an entry that one node lost and another gained has moved.
    fn changes(mut self) -> Changes<K, V> {
        for (key, value) in self.gained {
            let old = self.lost.remove(&key);
            if old != Some(value) {
                self.put.push((key, value, old.is_some()));
            }
        }
        Changes { gone: self.lost.into_keys().collect(), put: self.put }
    }
}

/// What did not fit into the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Of `backends`.
    pub backends: BTreeSet<Addr>,
    /// Of `ports`.
    pub ports: BTreeSet<PortKey>,
}

impl LeftOut {
    /// Whether everything fitted.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty() && self.ports.is_empty()
    }
}

/// The changes from one set of tables to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    backends: Changes<Addr, BackendEntry>,
    ports: Changes<PortKey, u32>,
}

/// One map write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This key must not lie in `ports`.
    DropPort(PortKey),
    /// This key must not lie in `backends`.
    DropBackend(Addr),
    /// This entry must lie in `backends`. By then its key does not lie there.
    PutBackend(Addr, BackendEntry),
    /// This entry must lie in `ports`; whether its key lies there with another value.
    PutPort(PortKey, u32, bool),
}

impl Delta {
    /// The changes from `before`, without the entries that did not fit, to `after`.
    pub fn between(before: &Tables, left_out: &LeftOut, after: &Tables) -> Self {
        Self {
            backends: Changes::between(&before.backends, &left_out.backends, &after.backends),
            ports: Changes::between(&before.ports, &left_out.ports, &after.ports),
        }
    }

    /// As [`Self::between`], of tables that share the parts of nodes in which nothing changed. Where everything fitted, this costs in proportion to the other parts.
    pub(crate) fn of_nodes(before: &NodeTables, left_out: &LeftOut, after: &NodeTables) -> Self {
        if !left_out.is_empty() {
            return Self::between(&before.flat(), left_out, &after.flat());
        }
        let mut backends = Moves::new();
        let mut ports = Moves::new();
        for (before, after) in after.changed_since(before) {
            let of = |part: Option<&NodePart>| part.map(NodePart::backends).unwrap_or_default();
            backends.note(&of(before), &of(after));
            let of = |part: Option<&NodePart>| part.map(NodePart::ports).unwrap_or_default();
            ports.note(&of(before), &of(after));
        }
        Self { backends: backends.changes(), ports: ports.changes() }
    }

    /// The writes in the order in which they must be made ([`Tables`]). Entries that are not wanted any more are deleted first: they are to pass, and make room.
    /// Addresses that change nodes pass until all of them have left their old nodes: where two addresses of a Service swap nodes and one were written first, both
    /// would be cut. They are written again before anything new is, so that they fit into the space that they left.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        let Self { backends, ports } = self;
        let gone = ports.gone.iter().map(|key| Step::DropPort(*key));
        let moved = || backends.put.iter().filter(|(.., there)| *there);
        let leaving = backends.gone.iter().chain(moved().map(|(addr, ..)| addr));
        let gone = gone.chain(leaving.map(|addr| Step::DropBackend(*addr)));
        let new = backends.put.iter().filter(|(.., there)| !there);
        let put = moved().chain(new).map(|(addr, entry, _)| Step::PutBackend(*addr, *entry));
        let put = put.chain(ports.put.iter().map(|(key, flags, there)| Step::PutPort(*key, *flags, *there)));
        gone.chain(put)
    }
}
