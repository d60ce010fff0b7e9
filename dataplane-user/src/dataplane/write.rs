//! Bringing the tables into the maps: deletes first, since what is no longer wanted is to pass, and makes room; then inserts and updates.
//!
//! Nodes' entries, and what `ports` keeps, are left alone here: they have a writer of their own ([`super::NodeWriter`]). That no packet ever
//! meets the verdict of a node that is not its own is seen to by who has both write: entries of the index's former owner name an older
//! generation once the new one is in the map, which must be so before anything is written here that names it.
//!
//! Entries that are equal are not written. A full map leaves entries out, which then pass.
use std::{collections::HashMap as Wanted, hash::Hash};

use aya::{
    Pod,
    maps::{HashMap, MapData},
};
use nodefence_common::{Addr, port_kinds};

use super::{
    error::Error,
    maps::{Maps, is_full, is_passing},
    names,
};
use crate::plan::Tables;

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

pub(super) fn write(maps: &mut Maps, tables: &Tables) -> Result<WriteReport, Error> {
    let mut report = WriteReport::default();
    delete(&mut maps.ports, &tables.ports, names::PORTS, &mut report, |key| {
        key.kind == port_kinds::ENDPOINT
    })?;
    delete(&mut maps.backends, &tables.backends, names::BACKENDS, &mut report, |_| true)?;
    let left_out = put(&mut maps.backends, &tables.backends, names::BACKENDS, &mut report)?;
    report.left_out = left_out.len() as u64;
    report.left_out_first = left_out.into_iter().take(NAMED).map(|addr: Addr| addr.into()).collect();
    let left_out = put(&mut maps.ports, &tables.ports, names::PORTS, &mut report)?;
    report.left_out_ports = left_out.len() as u64;
    Ok(report)
}

fn delete<K: Pod + Eq + Hash, V: Pod>(
    map: &mut HashMap<MapData, K, V>,
    wanted: &Wanted<K, V>,
    name: &'static str,
    report: &mut WriteReport,
    ours: impl Fn(&K) -> bool,
) -> Result<(), Error> {
    // Collected first: the kernel's iteration starts again where the key that it stands on is deleted.
    let keys = map.keys().filter(|k| k.as_ref().map_or(true, |k| ours(k) && !wanted.contains_key(k)));
    let keys: Vec<K> = keys.collect::<Result<_, _>>().map_err(Error::map(name))?;
    for key in keys {
        match map.remove(&key) {
            Ok(()) => report.deleted += 1,
            Err(aya::maps::MapError::KeyNotFound) => {}
            Err(e) => return Err(Error::map(name)(e)),
        }
    }
    Ok(())
}

/// How often an insert is tried that failed for the moment only, and how long each time waits.
const TRIES: u32 = 20;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// Inserts; again where the kernel had no free element or no bucket lock at hand (ENOMEM, EBUSY, EAGAIN: kernel/bpf/hashtab.c
/// from 6.1 on takes elements from a per-CPU cache that is refilled behind its back).
pub(super) fn insert<K: Pod, V: Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: &K,
    value: &V,
) -> Result<(), aya::maps::MapError> {
    let mut left = TRIES;
    loop {
        match map.insert(key, value, 0) {
            Err(e) if left > 0 && is_passing(&e) => {
                left -= 1;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Returns the keys that did not fit.
fn put<K: Pod + Eq + Hash, V: Pod + Eq>(
    map: &mut HashMap<MapData, K, V>,
    wanted: &Wanted<K, V>,
    name: &'static str,
    report: &mut WriteReport,
) -> Result<Vec<K>, Error> {
    let mut left_out = Vec::new();
    for (key, value) in wanted {
        let there = match map.get(key, 0) {
            Ok(there) if there == *value => continue,
            Ok(_) => true,
            Err(aya::maps::MapError::KeyNotFound) => false,
            Err(e) => return Err(Error::map(name)(e)),
        };
        match insert(map, key, value) {
            Ok(()) if there => report.updated += 1,
            Ok(()) => report.inserted += 1,
            Err(e) if is_full(&e) => left_out.push(*key),
            Err(e) => return Err(Error::map(name)(e)),
        }
    }
    Ok(left_out)
}
