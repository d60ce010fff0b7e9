//! Compares the maps with the tables that were written last, some entries at a time, and mends what somebody else changed.

use std::{
    collections::{BTreeSet, HashMap as Ports},
    fmt::Debug,
    sync::Arc,
};

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use nodefence_common::{Addr, BackendEntry, PortKey, port_kinds};

use super::{
    entries::{drop_key, insert, is_full},
    error::Error,
    names, sys,
    table_maps::TableMaps,
};
use nodefence_core::plan::{Fix, LeftOut, NodeTables, Pass, WantedEntries};

/// How many entries one step compares. A step takes some 100 us.
const AT_ONCE: u32 = 512;

/// How far the comparison of both maps is.
#[derive(Debug, Default)]
pub struct Comparison {
    backends: Progress<Addr, BackendEntry>,
    ports: Progress<PortKey, u32>,
    /// The wanted ports, and the tables to which they belong. Entries of ports name no node.
    wanted_ports: Option<(Arc<NodeTables>, Ports<PortKey, u32>)>,
    /// Entries that were mended.
    mended: u64,
}

/// How far the comparison of one map is.
#[derive(Debug)]
struct Progress<K, V> {
    pass: Pass<K, V>,
    at: At,
}

impl<K, V> Default for Progress<K, V> {
    fn default() -> Self {
        Self { pass: Pass::default(), at: At::Entries(None) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Entries of the map are read from this place on. `None` is the beginning.
    Entries(Option<u32>),
    /// Wanted keys are looked up.
    Keys,
    /// All is done.
    Over,
}

/// One map, and what is wanted in it.
struct One<'a, K: Pod, V: Pod, W> {
    map: &'a mut HashMap<MapData, K, V>,
    wanted: &'a W,
    left_out: &'a BTreeSet<K>,
    name: &'static str,
}

impl Comparison {
    /// Notes that other tables were written meanwhile.
    pub const fn changed(&mut self) {
        self.backends.pass.changed();
        self.ports.pass.changed();
    }

    /// How many entries were mended.
    pub const fn mended(&self) -> u64 {
        self.mended
    }

    /// Compares some more entries, and mends what differs. `tables`, without the entries in `left_out`, were written last. Returns whether
    /// all entries were compared.
    ///
    /// # Errors
    /// Fails if a map cannot be read or written.
    pub fn go_on(
        &mut self,
        maps: &mut TableMaps,
        tables: &Arc<NodeTables>,
        left_out: &LeftOut,
    ) -> Result<bool, Error> {
        if self.ports.at != At::Over {
            let known = self.wanted_ports.take().filter(|(of, _)| Arc::ptr_eq(of, tables));
            let (_, wanted) = self
                .wanted_ports
                .insert(known.unwrap_or_else(|| (Arc::clone(tables), tables.all_ports().collect())));
            let one =
                One { map: &mut maps.ports, wanted: &*wanted, left_out: &left_out.ports, name: names::PORTS };
            // Exemptions have a writer of their own.
            let is_ours = |key: &PortKey| key.kind == port_kinds::ENDPOINT;
            self.mended += self.ports.go_on(one, is_ours)?;
            return Ok(false);
        }
        self.wanted_ports = None;
        let one = One {
            map: &mut maps.backends,
            wanted: &**tables,
            left_out: &left_out.backends,
            name: names::BACKENDS,
        };
        self.mended += self.backends.go_on(one, |_| true)?;
        Ok(self.backends.at == At::Over)
    }
}

impl<K: Pod + Ord + Debug, V: Pod + PartialEq> Progress<K, V> {
    /// Compares some more entries. Returns how many were mended.
    fn go_on(
        &mut self,
        mut one: One<'_, K, V, impl WantedEntries<K, V>>,
        is_ours: impl Fn(&K) -> bool,
    ) -> Result<u64, Error> {
        match self.at {
            At::Entries(from) => self.entries(&mut one, from, is_ours),
            At::Keys => self.keys(&mut one),
            At::Over => Ok(0),
        }
    }

    fn entries(
        &mut self,
        one: &mut One<'_, K, V, impl WantedEntries<K, V>>,
        from: Option<u32>,
        is_ours: impl Fn(&K) -> bool,
    ) -> Result<u64, Error> {
        let read = sys::page(one.map, from, AT_ONCE);
        let page = read.map_err(Error::call(format!("read the map {}", one.name)))?;
        let mut mended = 0;
        let mut first = None;
        for (key, there) in page.entries.iter().filter(|(key, _)| is_ours(key)) {
            let Some(fix) = self.pass.look(key, there, one.wanted) else { continue };
            mended += match fix {
                Fix::Delete => drop_key(one.map, key, one.name)?,
                Fix::Put(value) => one.put(key, &value)?,
            };
            first.get_or_insert(*key);
        }
        if let Some(first) = first {
            tracing::warn!(
                event = "entries-mended",
                map = one.name,
                mended,
                ?first,
                "entries were not as they were written; mended"
            );
        }
        self.at = At::Entries(page.next);
        if page.next.is_none() {
            self.pass.seen_all(one.wanted, one.left_out);
            self.at = At::Keys;
        }
        Ok(mended)
    }

    fn keys(&mut self, one: &mut One<'_, K, V, impl WantedEntries<K, V>>) -> Result<u64, Error> {
        let mut mended = 0;
        let mut first = None;
        for _ in 0..AT_ONCE {
            let Some((key, wanted)) = self.pass.next_entry() else {
                self.at = At::Over;
                break;
            };
            let Some(value) = one.wanted.at(&key, &wanted) else { continue };
            match one.map.get(&key, 0) {
                Ok(there) if there == value => continue,
                Ok(_) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(Error::map(one.name)(error)),
            }
            mended += one.put(&key, &value)?;
            first.get_or_insert(key);
        }
        if let Some(first) = first {
            tracing::warn!(
                event = "entries-rewritten",
                map = one.name,
                mended,
                ?first,
                "entries were missing; written again"
            );
        }
        Ok(mended)
    }
}

impl<K: Pod, V: Pod, W> One<'_, K, V, W> {
    /// Writes an entry. Returns how many were written: 0 if the map has no room.
    fn put(&mut self, key: &K, value: &V) -> Result<u64, Error> {
        match insert(self.map, key, value) {
            Ok(()) => Ok(1),
            Err(error) if is_full(&error) => Ok(0),
            Err(error) => Err(Error::map(self.name)(error)),
        }
    }
}
