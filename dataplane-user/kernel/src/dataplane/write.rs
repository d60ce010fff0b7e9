//! Writes tables into the maps. Deletes come first: packets to entries that are no longer wanted are to pass, and deletes make room.
//! Inserts and updates follow.
//!
//! Nodes' entries, and exemptions in `ports`, have a writer of their own ([`super::NodeWriter`]), and are not touched here. No packet may
//! meet the verdict of a node that is not its own. The owner of both writers sees to that: before an entry is written here, the generation
//! that it names must be in the map `nodes`. Entries of the index's former owner then name an older generation.
//!
//! Entries that are equal are not written. If a map is full, entries are left out, and their packets pass.
//!
//! If maps are staged, the new maps are written. Entries that the new maps lack, or have with another value, are deleted from the old ones:
//! verdicts hold for both maps, and an address may be another node's by now.
use std::{collections::HashMap as Entries, hash::Hash};

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use nodefence_common::port_kinds;

use super::{
    entries::{drop_key, each, insert, is_full},
    error::Error,
    names,
    table_maps::TableMaps,
};
use nodefence_core::plan::{Delta, LeftOut, Step, Tables};

/// What a write changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct WriteReport {
    /// Backends and ports that were not in the maps before, and backends that are another node's now.
    pub inserted: u64,
    /// Ports whose entry had another value.
    pub updated: u64,
    /// Backends and ports that are no longer wanted, and backends that were another node's.
    pub deleted: u64,
    /// Backends that did not fit: their packets pass.
    pub left_out: u64,
    /// Host-network ports that did not fit: their packets pass.
    pub left_out_ports: u64,
    /// The first addresses of the backends that did not fit.
    pub left_out_first: Vec<std::net::IpAddr>,
}

/// How many of the backends that did not fit are named.
const NAMED: usize = 8;

impl TableMaps {
    /// Reads the tables from the maps.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn read(&self) -> Result<Tables, Error> {
        let mut tables = Tables::default();
        each(&self.backends, names::BACKENDS, |addr, entry| {
            tables.backends.insert(addr, entry);
        })?;
        each(&self.ports, names::PORTS, |key, flags| {
            if key.kind == port_kinds::ENDPOINT {
                tables.ports.insert(key, flags);
            }
        })?;
        Ok(tables)
    }

    /// Makes the writes in their order. A full map is no error: entries that do not fit are reported, and their packets pass. Every
    /// generation that is named must be in `nodes` before ([`super::NodeWriter`]). If maps are staged ([`super::Attach::is_staged`]),
    /// packets to everything that differs in the old maps pass from then on.
    ///
    /// # Errors
    /// Fails if a map cannot be written. The content of the maps is not known then.
    pub fn write(&mut self, delta: &Delta) -> Result<(WriteReport, LeftOut), Error> {
        let mut report = WriteReport::default();
        let mut backends = Room::new(&mut self.backends);
        let mut ports = Room::new(&mut self.ports);
        for step in delta.steps() {
            match step {
                Step::DropPort(key) => report.deleted += drop_key(ports.map, &key, names::PORTS)?,
                Step::DropBackend(addr) => report.deleted += drop_key(backends.map, &addr, names::BACKENDS)?,
                Step::PutBackend(addr, entry) => {
                    backends.put(addr, entry, false, &mut report).map_err(Error::map(names::BACKENDS))?;
                }
                Step::PutPort(key, flags, there) => {
                    ports.put(key, flags, there, &mut report).map_err(Error::map(names::PORTS))?;
                }
            }
        }
        let left_out = LeftOut {
            backends: backends.left_out.into_iter().collect(),
            ports: ports.left_out.into_iter().collect(),
        };
        report.left_out = left_out.backends.len() as u64;
        report.left_out_first = left_out.backends.iter().take(NAMED).map(|addr| (*addr).into()).collect();
        report.left_out_ports = left_out.ports.len() as u64;
        self.forget_in_old()?;
        Ok((report, left_out))
    }

    /// Deletes from the old maps the entries that the new ones lack or have with another value. Reads all entries: a smaller new map never
    /// had all keys of the old one, so no delta names them. The cost is in proportion to the size of the maps, but arises only until
    /// devices are switched.
    fn forget_in_old(&self) -> Result<(), Error> {
        let Some(staged) = self.still_staged.upgrade() else { return Ok(()) };
        if let Some(mut old) = staged.old(names::PORTS)? {
            // The writer of exemptions writes both maps.
            delete_differing(&mut old, &self.ports, names::PORTS, |key| key.kind == port_kinds::ENDPOINT)?;
        }
        if let Some(mut old) = staged.old(names::BACKENDS)? {
            delete_differing(&mut old, &self.backends, names::BACKENDS, |_| true)?;
        }
        Ok(())
    }
}

/// Deletes from the old map every entry that the new map lacks or has with another value. Looks only at keys that are `ours`.
fn delete_differing<K: Pod + Eq + Hash, V: Pod + PartialEq>(
    old: &mut HashMap<MapData, K, V>,
    new: &HashMap<MapData, K, V>,
    name: &'static str,
    ours: impl Fn(&K) -> bool,
) -> Result<(), Error> {
    let mut wanted = Entries::new();
    each(new, name, |key, value| {
        wanted.insert(key, value);
    })?;
    let mut differing = Vec::new();
    each(old, name, |key, value| {
        if ours(&key) && wanted.get(&key) != Some(&value) {
            differing.push(key);
        }
    })?;
    for key in differing {
        drop_key(old, &key, name)?;
    }
    Ok(())
}

/// A map, and the keys that found no room in it.
struct Room<'a, K: Pod, V: Pod> {
    map: &'a mut HashMap<MapData, K, V>,
    left_out: Vec<K>,
}

impl<'a, K: Pod, V: Pod> Room<'a, K, V> {
    const fn new(map: &'a mut HashMap<MapData, K, V>) -> Self {
        Self { map, left_out: Vec::new() }
    }

    fn put(&mut self, key: K, value: V, there: bool, report: &mut WriteReport) -> Result<(), MapError> {
        // No delete follows: if one new key found no room, no other will.
        if !there && !self.left_out.is_empty() {
            self.left_out.push(key);
            return Ok(());
        }
        match insert(self.map, &key, &value) {
            Ok(()) if there => report.updated += 1,
            Ok(()) => report.inserted += 1,
            Err(error) if is_full(&error) => self.left_out.push(key),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
