//! Typed access to the maps.
use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray},
};
use nodefence_common::{Addr, BackendEntry, Config, Counter, Device, NodeEntry, PortKey, Reason};

use super::{error::Error, names, sys};

pub(super) struct Maps {
    pub(super) backends: HashMap<MapData, Addr, BackendEntry>,
    pub(super) ports: HashMap<MapData, PortKey, u32>,
    pub(super) nodes: Array<MapData, NodeEntry>,
    pub(super) devices: HashMap<MapData, u32, Device>,
    counters: PerCpuArray<MapData, Counter>,
    config: Array<MapData, Config>,
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
            devices: take(ebpf, names::DEVICES)?,
            counters: take(ebpf, names::COUNTERS)?,
            config: take(ebpf, names::CONFIG)?,
        })
    }

    pub(super) fn set_config(&mut self, config: &Config) -> Result<(), Error> {
        self.config.set(0, config, 0).map_err(Error::map(names::CONFIG))
    }

    /// Sums over the CPUs, one for each reason.
    pub(super) fn counters(&self) -> Result<Vec<(Reason, Counter)>, Error> {
        Reason::ALL
            .iter()
            .map(|reason| {
                let values = self.counters.get(&(*reason as u32), 0).map_err(Error::map(names::COUNTERS))?;
                let sum = values.iter().fold(Counter::default(), |sum, c| Counter {
                    packets: sum.packets.wrapping_add(c.packets),
                    bytes: sum.bytes.wrapping_add(c.bytes),
                });
                Ok((*reason, sum))
            })
            .collect()
    }

    /// Writes what the XDP program must know of a device, where it is not there yet.
    pub(super) fn set_device(&mut self, ifindex: u32, device: Device) -> Result<(), Error> {
        if self.devices.get(&ifindex, 0).is_ok_and(|there| there == device) {
            return Ok(());
        }
        self.devices.insert(&ifindex, &device, 0).map_err(Error::map(names::DEVICES))
    }

    pub(super) fn remove_device(&mut self, ifindex: u32) {
        // It may never have been there.
        let _ = self.devices.remove(&ifindex);
    }
}

/// Every entry of `nodes` that has or had an owner. An index that never had one has generation 0.
pub(super) fn owned_nodes(nodes: &Array<MapData, NodeEntry>) -> Result<Vec<(u32, NodeEntry)>, Error> {
    let empty = NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] };
    let entries = sys::values(nodes, empty).map_err(Error::call("read the map nodes"))?;
    Ok((0..).zip(entries).filter(|(_, entry)| entry.generation != 0).collect())
}

/// Whether a pinned map could not be opened because it has another layout than the one asked for.
pub(super) fn is_other_layout(error: &MapError) -> bool {
    matches!(
        error,
        MapError::InvalidKeySize { .. } | MapError::InvalidValueSize { .. } | MapError::InvalidMapType { .. }
    )
}

/// Whether a hash map refused an entry for the moment only.
pub(super) fn is_passing(error: &MapError) -> bool {
    let MapError::SyscallError(e) = error else { return false };
    matches!(e.io_error.raw_os_error(), Some(libc::ENOMEM | libc::EBUSY | libc::EAGAIN))
}

/// Whether a hash map refused an entry because it is full (kernel/bpf/hashtab.c).
pub(super) fn is_full(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(e) if matches!(e.io_error.raw_os_error(), Some(libc::E2BIG)))
}
