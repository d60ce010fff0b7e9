//! Typed access to the maps.
use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray},
};
use nodefence_common::{Addr, BackendEntry, Config, Counter, Device, NodeEntry, PortKey, Reason};

use super::{error::Error, names, senders::Senders, sys};

pub(super) struct Maps {
    pub(super) backends: HashMap<MapData, Addr, BackendEntry>,
    pub(super) ports: HashMap<MapData, PortKey, u32>,
    pub(super) nodes: Array<MapData, NodeEntry>,
    pub(super) devices: DeviceMap,
    pub(super) senders: Senders,
    pub(super) counters: Counters,
    pub(super) switches: Switches,
}

/// What the XDP program needs to know about each device.
pub(super) struct DeviceMap(pub(super) HashMap<MapData, u32, Device>);

/// What the kernel programs counted.
pub struct Counters(PerCpuArray<MapData, Counter>);

/// The configuration that the kernel programs read.
pub struct Switches(Array<MapData, Config>);

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
            senders: Senders {
                macs: take(ebpf, names::MACS)?,
                route_vlans: take(ebpf, names::ROUTE_VLANS)?,
                written: None,
                left_out: 0,
            },
            counters: Counters(take(ebpf, names::COUNTERS)?),
            switches: Switches(take(ebpf, names::CONFIG)?),
        })
    }
}

impl Switches {
    /// Writes the configuration.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn set(&mut self, config: &Config) -> Result<(), Error> {
        self.0.set(0, config, 0).map_err(Error::map(names::CONFIG))
    }
}

impl Counters {
    /// Packets and bytes since the maps were made: one pair for each reason, summed over the CPUs.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn read(&self) -> Result<Vec<(Reason, Counter)>, Error> {
        Reason::ALL
            .iter()
            .map(|reason| {
                let values = self.0.get(&(*reason as u32), 0).map_err(Error::map(names::COUNTERS))?;
                let sum = values.iter().fold(Counter::default(), |sum, counter| Counter {
                    packets: sum.packets.wrapping_add(counter.packets),
                    bytes: sum.bytes.wrapping_add(counter.bytes),
                });
                Ok((*reason, sum))
            })
            .collect()
    }
}

impl DeviceMap {
    /// Writes what the XDP program needs to know about a device, unless the map has it already.
    pub(super) fn set(&mut self, ifindex: u32, device: Device) -> Result<(), Error> {
        if self.0.get(&ifindex, 0).is_ok_and(|there| there == device) {
            return Ok(());
        }
        self.0.insert(&ifindex, &device, 0).map_err(Error::map(names::DEVICES))
    }

    pub(super) fn remove(&mut self, ifindex: u32) {
        // The map may not have this device.
        let _ = self.0.remove(&ifindex);
    }
}

/// Every entry of `nodes` that has or had an owner. An index that never had one has generation 0.
pub(super) fn owned_nodes(nodes: &Array<MapData, NodeEntry>) -> Result<Vec<(u32, NodeEntry)>, Error> {
    let empty = NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] };
    let entries = sys::values(nodes, empty).map_err(Error::call("read the map nodes"))?;
    Ok((0..).zip(entries).filter(|(_, entry)| entry.generation != 0).collect())
}
