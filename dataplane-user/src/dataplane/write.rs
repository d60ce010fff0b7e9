//! Bringing the tables into the maps, in an order in which no packet ever meets the verdict of a node that is not its
//! own:
//!
//! 1. nodes whose generation is new, as healthy and not heard of: entries of the index's former owner now name an older
//!    generation;
//! 2. deletes: what is no longer wanted is to pass, and makes room;
//! 3. inserts and updates;
//! 4. verdicts, but for entries that somebody else wrote meanwhile: a verdict that was set, taken back or renewed while
//!    the tables were on their way is newer than the tables.
//!
//! What `ports` keeps is left alone here: it follows the verdicts, and who writes those writes it too ([`super::NodeWriter`]).
//!
//! Entries that are equal are not written. A full map leaves entries out, which then pass.
use std::{collections::HashMap as Wanted, hash::Hash};

use aya::{
    Pod,
    maps::{HashMap, MapData},
};
use nodefence_common::{Addr, MAX_NODES, NodeEntry, Verdict, port_kinds};

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
    /// Node entries written.
    pub nodes: u64,
    /// Backends that did not fit: their packets pass.
    pub left_out: u64,
    /// Host-network ports that did not fit: their packets pass.
    pub left_out_ports: u64,
    /// The first few of the backends' addresses.
    pub left_out_first: Vec<std::net::IpAddr>,
}

/// How many left-out addresses are named.
const NAMED: usize = 8;

/// Writes one node's entry. The only place that does.
pub(super) type WriteNode<'a> = &'a mut dyn FnMut(&mut Maps, u32, &NodeEntry) -> Result<(), Error>;

pub(super) fn write(
    maps: &mut Maps,
    tables: &Tables,
    write_node: WriteNode<'_>,
) -> Result<WriteReport, Error> {
    let mut report = WriteReport::default();
    if let Some((index, _)) = tables.nodes.range(MAX_NODES..).next() {
        return Err(Error::NodeIndex(*index));
    }
    let mut there: Wanted<u32, NodeEntry> = maps.used_nodes()?.into_iter().collect();
    for (index, entry) in &tables.nodes {
        if there.get(index).map_or(0, |e| e.generation) != entry.generation {
            let healthy = NodeEntry { verdict: Verdict::Healthy as u32, action: 0, until: 0, ..*entry };
            write_node(maps, *index, &healthy)?;
            // Once the generation is the new one, packets of the former owner stamp nothing any more.
            maps.forget_seen(*index)?;
            there.insert(*index, healthy);
            report.nodes += 1;
        }
    }
    delete(&mut maps.ports, &tables.ports, names::PORTS, &mut report, |key| {
        key.kind == port_kinds::ENDPOINT
    })?;
    delete(&mut maps.backends, &tables.backends, names::BACKENDS, &mut report, |_| true)?;
    let left_out = put(&mut maps.backends, &tables.backends, names::BACKENDS, &mut report)?;
    report.left_out = left_out.len() as u64;
    report.left_out_first = left_out.into_iter().take(NAMED).map(|addr: Addr| addr.into()).collect();
    let left_out = put(&mut maps.ports, &tables.ports, names::PORTS, &mut report)?;
    report.left_out_ports = left_out.len() as u64;
    for (index, old) in &there {
        if !tables.nodes.contains_key(index) {
            // The generation stays, so that the index's next owner gets a higher one.
            let unused = NodeEntry { generation: old.generation, ..super::maps::EMPTY_NODE };
            if *old != unused {
                write_node(maps, *index, &unused)?;
                report.nodes += 1;
            }
        }
    }
    for (index, entry) in &tables.nodes {
        let now = maps.nodes.get(index, 0).map_err(Error::map(names::NODES))?;
        if now != *entry && there.get(index) == Some(&now) {
            write_node(maps, *index, entry)?;
            report.nodes += 1;
        }
    }
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
