//! Bringing tables into the maps: deletes first, since what is no longer wanted is to pass, and makes room; then inserts and updates.
//!
//! Nodes' entries, and what `ports` keeps, are left alone here: they have a writer of their own ([`super::NodeWriter`]). That no packet ever
//! meets the verdict of a node that is not its own is seen to by who has both write: entries of the index's former owner name an older
//! generation once the new one is in the map, which must be so before anything is written here that names it.
//!
//! Entries that are equal are not written. A full map leaves entries out, which then pass.
use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use nodefence_common::port_kinds;

use super::{
    error::Error,
    maps::{drop_key, each, insert, is_full},
    names,
    table_maps::TableMaps,
};
use nodefence_core::plan::{Delta, LeftOut, Step, Tables};

/// What a write changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct WriteReport {
    /// Backends and ports that were not there before.
    pub inserted: u64,
    /// Backends and ports whose entry was another.
    pub updated: u64,
    /// Backends and ports that are no longer wanted.
    pub deleted: u64,
    /// Backends that did not fit: their packets pass.
    pub left_out: u64,
    /// Host-network ports that did not fit: their packets pass.
    pub left_out_ports: u64,
    /// The first few of the backends' addresses.
    pub left_out_first: Vec<std::net::IpAddr>,
}

/// How many left-out addresses are named.
const NAMED: usize = 8;

impl TableMaps {
    /// All that tables have in the maps.
    ///
    /// # Errors
    /// Where a map cannot be read.
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

    /// Makes the writes in their order. A full map is no error: what does not fit is told, and passes. Every generation that is named must lie in `nodes`
    /// before ([`super::NodeWriter`]).
    ///
    /// # Errors
    /// Where a map cannot be written. What lies in the maps is not known then.
    pub fn write(&mut self, delta: &Delta) -> Result<(WriteReport, LeftOut), Error> {
        let mut report = WriteReport::default();
        let (mut backends, mut ports) = (Room::new(&mut self.backends), Room::new(&mut self.ports));
        for step in delta.steps() {
            match step {
                Step::DropPort(key) => report.deleted += drop_key(ports.map, &key, names::PORTS)?,
                Step::DropBackend(addr) => report.deleted += drop_key(backends.map, &addr, names::BACKENDS)?,
                Step::PutBackend(addr, entry, there) => {
                    backends.put(addr, entry, there, &mut report).map_err(Error::map(names::BACKENDS))?;
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
        Ok((report, left_out))
    }
}

/// A map, and what finds no room in it.
struct Room<'a, K: Pod, V: Pod> {
    map: &'a mut HashMap<MapData, K, V>,
    left_out: Vec<K>,
}

impl<'a, K: Pod, V: Pod> Room<'a, K, V> {
    const fn new(map: &'a mut HashMap<MapData, K, V>) -> Self {
        Self { map, left_out: Vec::new() }
    }

    fn put(&mut self, key: K, value: V, there: bool, report: &mut WriteReport) -> Result<(), MapError> {
        // Nothing is deleted any more: where one new key found no room, no other will.
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
