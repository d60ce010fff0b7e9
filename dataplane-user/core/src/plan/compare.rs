//! A whole map held against what was written into it, a few entries at a time, while other writes go on. What differs is to be mended.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    vec::IntoIter,
};

/// What mends an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix<V> {
    /// It is deleted.
    Delete,
    /// It gets this value.
    Put(V),
}

/// How far the comparison of one map is.
#[derive(Debug)]
pub struct Pass<K> {
    /// Entries seen so far that have a wanted key.
    seen: usize,
    /// Something was written since it began: what was counted proves nothing.
    changed: bool,
    /// Wanted keys that are to be looked up one by one.
    left: IntoIter<K>,
}

impl<K> Default for Pass<K> {
    fn default() -> Self {
        Self { seen: 0, changed: false, left: Vec::new().into_iter() }
    }
}

impl<K: Copy + Ord + Hash> Pass<K> {
    /// Another write came between.
    pub const fn changed(&mut self) {
        self.changed = true;
    }

    /// An entry that lies in the map. What mends it, if anything is wrong.
    pub fn look<V: Copy + PartialEq>(
        &mut self,
        key: &K,
        there: &V,
        wanted: &HashMap<K, V>,
    ) -> Option<Fix<V>> {
        let Some(wanted) = wanted.get(key) else { return Some(Fix::Delete) };
        self.seen += 1;
        (wanted != there).then_some(Fix::Put(*wanted))
    }

    /// All entries were shown. Where as many lie there as are wanted, but for those that did not fit, none is missing; else each is to be looked up.
    pub fn seen_all<V>(&mut self, wanted: &HashMap<K, V>, left_out: &BTreeSet<K>) {
        if self.changed || self.seen + left_out.len() != wanted.len() {
            let keys: Vec<K> = wanted.keys().filter(|key| !left_out.contains(key)).copied().collect();
            self.left = keys.into_iter();
        }
    }

    /// The next key that is to be looked up. It may be wanted no more, or otherwise, where another write came between.
    pub fn next_key(&mut self) -> Option<K> {
        self.left.next()
    }
}
