//! Typed access to the maps.
use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray},
};
use nodefence_common::{Addr, BackendEntry, Config, Counter, Device, NodeEntry, PortKey, Reason};

use super::{error::Error, names, sys};

pub(super) struct Maps {
    pub(super) backends: HashMap<MapData, Addr, BackendEntry>,
    pub(super) ports: HashMap<MapData, PortKey, u32>,
    pub(super) nodes: Array<MapData, NodeEntry>,
    pub(super) devices: DeviceMap,
    pub(super) counters: Counters,
    pub(super) switches: Switches,
}

/// What the XDP program must know of devices.
pub(super) struct DeviceMap(pub(super) HashMap<MapData, u32, Device>);

/// What the kernel programs counted.
pub struct Counters(PerCpuArray<MapData, Counter>);

/// How the kernel programs are configured.
pub struct Switches(Array<MapData, Config>);

/// Entries that are read by one call.
const AT_ONCE: u32 = 4_096;

/// Hands over every entry of a map.
pub(super) fn each<K: Pod, V: Pod>(
    map: &HashMap<MapData, K, V>,
    name: &'static str,
    mut each: impl FnMut(K, V),
) -> Result<(), Error> {
    let mut from = None;
    loop {
        let page = sys::page(map, from, AT_ONCE).map_err(Error::call(format!("read the map {name}")))?;
        page.entries.into_iter().for_each(|(key, value)| each(key, value));
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

fn take<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = ebpf.take_map(name).ok_or(Error::Missing { kind: "map", name })?;
    T::try_from(map).map_err(Error::map(name))
}

impl Maps {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        Ok(Self {
            backends: take(ebpf, names::BACKENDS)?,
            ports: take(ebpf, names::PORTS)?,
            nodes: take(ebpf, names::NODES)?,
            devices: DeviceMap(take(ebpf, names::DEVICES)?),
            counters: Counters(take(ebpf, names::COUNTERS)?),
            switches: Switches(take(ebpf, names::CONFIG)?),
        })
    }
}

impl Switches {
    /// Changes what the kernel programs read of the configuration.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn set(&mut self, config: &Config) -> Result<(), Error> {
        self.0.set(0, config, 0).map_err(Error::map(names::CONFIG))
    }
}

impl Counters {
    /// Packets and bytes since the maps were made, one pair for each reason, summed over the CPUs.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn read(&self) -> Result<Vec<(Reason, Counter)>, Error> {
        Reason::ALL
            .iter()
            .map(|reason| {
                let values = self.0.get(&(*reason as u32), 0).map_err(Error::map(names::COUNTERS))?;
                let sum = values.iter().fold(Counter::default(), |sum, c| Counter {
                    packets: sum.packets.wrapping_add(c.packets),
                    bytes: sum.bytes.wrapping_add(c.bytes),
                });
                Ok((*reason, sum))
            })
            .collect()
    }
}

impl DeviceMap {
    /// Writes what the XDP program must know of a device, where it is not there yet.
    pub(super) fn set(&mut self, ifindex: u32, device: Device) -> Result<(), Error> {
        if self.0.get(&ifindex, 0).is_ok_and(|there| there == device) {
            return Ok(());
        }
        self.0.insert(&ifindex, &device, 0).map_err(Error::map(names::DEVICES))
    }

    pub(super) fn remove(&mut self, ifindex: u32) {
        // It may never have been there.
        let _ = self.0.remove(&ifindex);
    }
}

/// Every entry of `nodes` that has or had an owner. An index that never had one has generation 0.
pub(super) fn owned_nodes(nodes: &Array<MapData, NodeEntry>) -> Result<Vec<(u32, NodeEntry)>, Error> {
    let empty = NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] };
    let entries = sys::values(nodes, empty).map_err(Error::call("read the map nodes"))?;
    Ok((0..).zip(entries).filter(|(_, entry)| entry.generation != 0).collect())
}

/// Whether a hash map refused an entry for the moment only.
fn is_passing(error: &MapError) -> bool {
    let MapError::SyscallError(e) = error else { return false };
    matches!(e.io_error.raw_os_error(), Some(libc::ENOMEM | libc::EBUSY | libc::EAGAIN))
}

/// Whether a hash map refused an entry because it is full (kernel/bpf/hashtab.c).
pub(super) fn is_full(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(e) if matches!(e.io_error.raw_os_error(), Some(libc::E2BIG)))
}

/// Deletes a key; one that is not there is no error. How many were deleted.
pub(super) fn drop_key<K: Pod, V: Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: &K,
    name: &'static str,
) -> Result<u64, Error> {
    match map.remove(key) {
        Ok(()) => Ok(1),
        Err(MapError::KeyNotFound) => Ok(0),
        Err(error) => Err(Error::map(name)(error)),
    }
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
) -> Result<(), MapError> {
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
