//! The only writer of nodes' entries and of exemptions. An exemption must be in the map before the verdict that needs it. The writer has
//! handles of its own, since verdicts are renewed before anything is loaded, and while devices are being attached.
use std::path::Path;

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use nodefence_common::{MAX_NODES, NodeEntry, PortKey, port_flags};

use super::{attach::Attach, entries::insert, error::Error, maps::owned_nodes, names};

/// Writes nodes' entries and exempt ports. Independent of the [`Attach`] that it was made from.
pub struct NodeWriter {
    nodes: Array<MapData, NodeEntry>,
    /// The old map, which devices use that are not switched yet.
    old_nodes: Option<Array<MapData, NodeEntry>>,
    /// `None` if verdicts are only renewed.
    ports: Option<HashMap<MapData, PortKey, u32>>,
    /// Like `old_nodes`.
    old_ports: Option<HashMap<MapData, PortKey, u32>>,
    /// `None` if the earlier agent has pinned no lease.
    lease: Option<Array<MapData, u64>>,
}

impl NodeWriter {
    /// A writer that does not wait for `devices`. If maps are staged ([`Attach::is_staged`]), it writes the old ones too.
    ///
    /// # Errors
    /// Fails if a map cannot be opened or read.
    pub fn new(devices: &Attach) -> Result<Self, Error> {
        let (nodes, old_nodes) = open_both(devices, names::NODES)?;
        let (ports, old_ports) = open_both(devices, names::PORTS)?;
        let (lease, _) = open_both(devices, names::LEASE)?;
        Ok(Self { nodes, old_nodes, ports: Some(ports), old_ports, lease: Some(lease) })
    }

    /// A writer that only renews verdicts, over the map that is pinned below `pin_dir`, before anything is loaded. Also returns every entry
    /// that has or had an owner. `None` if there is no such map, or if the map has another layout.
    pub fn pinned(pin_dir: &Path) -> Option<(Self, Vec<(u32, NodeEntry)>)> {
        let nodes = open(pin_dir, names::NODES).ok()?;
        let owned = owned_nodes(&nodes).ok()?;
        let lease = open(pin_dir, names::LEASE).ok();
        let this = Self { nodes, old_nodes: None, ports: None, old_ports: None, lease };
        Some((this, owned))
    }

    /// Writes one node's entry.
    pub fn write_node(&mut self, index: u32, entry: &NodeEntry) -> Result<(), Error> {
        if index >= MAX_NODES {
            return Err(Error::NodeIndex(index));
        }
        if let Some(old) = self.old_nodes.as_mut().filter(|old| index < old.len()) {
            old.set(index, entry, 0).map_err(Error::map(names::NODES))?;
        }
        self.nodes.set(index, entry, 0).map_err(Error::map(names::NODES))
    }

    /// Makes the datapath pass packets to a port, or to a whole address ([`PortKey::exempt_address`]).
    pub fn exempt_port(&mut self, key: &PortKey) -> Result<(), Error> {
        self.write_port(key, port_flags::EXEMPT)
    }

    /// Makes the datapath cut packets to a port of an exempt address.
    pub fn cut_port(&mut self, key: &PortKey) -> Result<(), Error> {
        self.write_port(key, port_flags::CUT)
    }

    fn write_port(&mut self, key: &PortKey, flags: u32) -> Result<(), Error> {
        for ports in self.old_ports.iter_mut().chain(&mut self.ports) {
            insert(ports, key, &flags).map_err(Error::map(names::PORTS))?;
        }
        Ok(())
    }

    /// Removes what [`Self::exempt_port`] or [`Self::cut_port`] wrote.
    pub fn unexempt_port(&mut self, key: &PortKey) -> Result<(), Error> {
        for ports in self.old_ports.iter_mut().chain(&mut self.ports) {
            match ports.remove(key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(Error::map(names::PORTS)(error)),
            }
        }
        Ok(())
    }

    /// Makes the drain of IPVS hold up to `until` (CLOCK_MONOTONIC, in ns). A lapsed lease stays lapsed unless it begins `anew`, since the
    /// guard may be restoring. `now` is the same clock. The caller must work out `until` before it reads `now`: a process that was stopped
    /// in between then writes a deadline that has passed.
    ///
    /// # Errors
    /// Fails if the map cannot be read or written.
    pub fn prolong(&mut self, now: u64, until: u64, anew: bool) -> Result<(), Error> {
        let Some(lease) = &mut self.lease else { return Ok(()) };
        let there = lease.get(&0, 0).map_err(Error::map(names::LEASE))?;
        if (anew || there > now) && until > there {
            lease.set(0, &until, 0).map_err(Error::map(names::LEASE))?;
        }
        Ok(())
    }

    /// Closes the old maps. Every device must be switched before ([`Attach::is_staged`]), so that nobody reads the old maps any more.
    pub fn forget_old(&mut self) {
        self.old_nodes = None;
        self.old_ports = None;
    }
}

/// Opens the map that stays. If this map is staged, also opens the old one, which devices use that are not switched yet.
fn open_both<T>(devices: &Attach, name: &'static str) -> Result<(T, Option<T>), Error>
where
    T: TryFrom<Map, Error = MapError>,
{
    let pinned = &devices.options.pin_dir;
    if !devices.staged.as_ref().is_some_and(|staged| staged.has(name)) {
        return Ok((open(pinned, name).map_err(Error::map(name))?, None));
    }
    let old = open(pinned, name).map_err(Error::map(name))?;
    Ok((open(&names::staging(pinned), name).map_err(Error::map(name))?, Some(old)))
}

pub(super) fn open<T>(folder: &Path, name: &'static str) -> Result<T, MapError>
where
    T: TryFrom<Map, Error = MapError>,
{
    MapData::from_pin(folder.join(name)).and_then(Map::from_map_data).and_then(T::try_from)
}
