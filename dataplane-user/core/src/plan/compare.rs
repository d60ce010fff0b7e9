//! Compares a whole map with what was written into it, a few entries at a time, while other writes go on. Entries that differ are to be mended.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    vec::IntoIter,
};

use nodefence_common::{Addr, BackendEntry};

use super::NodeTables;

/// What mends an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix<V> {
    /// Delete the entry.
    Delete,
    /// Put this value.
    Put(V),
}

/// The entries that are to lie in a map.
pub trait WantedEntries<K, V> {
    /// The value that is to lie under this key. `like`: the value that lies there, or was wanted there; it says where to look.
    fn at(&self, key: &K, like: &V) -> Option<V>;
    /// How many entries there are.
    fn count(&self) -> usize;
    /// All entries.
    fn all(&self) -> Vec<(K, V)>;
}

impl<K: Copy + Eq + Hash, V: Copy> WantedEntries<K, V> for HashMap<K, V> {
    fn at(&self, key: &K, _like: &V) -> Option<V> {
        self.get(key).copied()
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn all(&self) -> Vec<(K, V)> {
        self.iter().map(|(key, value)| (*key, *value)).collect()
    }
}

/// Backends: an entry in the map names the node in whose part it is looked for. An entry that names another node than it should is deleted, and then found missing.
impl WantedEntries<Addr, BackendEntry> for NodeTables {
    fn at(&self, key: &Addr, like: &BackendEntry) -> Option<BackendEntry> {
        self.backend(key, like.node)
    }

    fn count(&self) -> usize {
        self.backends()
    }

    fn all(&self) -> Vec<(Addr, BackendEntry)> {
        self.all_backends().collect()
    }
}

/// How far the comparison of one map is.
#[derive(Debug)]
pub struct Pass<K, V> {
    /// Entries seen so far that have a wanted key.
    seen: usize,
    /// Whether something was written since the comparison began: then the count proves nothing.
    changed: bool,
    /// Wanted entries to look up one by one.
    left: IntoIter<(K, V)>,
}

impl<K, V> Default for Pass<K, V> {
    fn default() -> Self {
        Self { seen: 0, changed: false, left: Vec::new().into_iter() }
    }
}

impl<K: Copy + Ord, V: Copy + PartialEq> Pass<K, V> {
    /// Takes note that another write came between.
    pub const fn changed(&mut self) {
        self.changed = true;
    }

    /// Compares an entry that lies in the map. Returns what mends it, if anything is wrong.
    pub fn look(&mut self, key: &K, there: &V, wanted: &impl WantedEntries<K, V>) -> Option<Fix<V>> {
        let Some(wanted) = wanted.at(key, there) else { return Some(Fix::Delete) };
        self.seen += 1;
        (wanted != *there).then_some(Fix::Put(wanted))
    }

    /// Takes note that all entries were compared. Where as many lie there as are wanted, but for those that did not fit, none is missing; else each is to be looked up.
    pub fn seen_all(&mut self, wanted: &impl WantedEntries<K, V>, left_out: &BTreeSet<K>) {
        if self.changed || self.seen + left_out.len() != wanted.count() {
            let mut all = wanted.all();
            all.retain(|(key, _)| !left_out.contains(key));
            self.left = all.into_iter();
        }
    }

    /// The next entry to look up. Where another write came between, it may be wanted no more, or with another value.
    pub fn next_entry(&mut self) -> Option<(K, V)> {
        self.left.next()
    }
}
