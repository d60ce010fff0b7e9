//! The one flip, for a thread of its own: verdicts must be renewed while slower work has the [`super::Dataplane`]. And what is
//! kept, which must be in the map before the flip.
use std::path::Path;

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use nodefence_common::{MAX_NODES, NodeEntry, PortKey, port_flags};

use super::{error::Error, handle::Dataplane, names, write::insert};

/// Writes node entries and kept ports. Independent of the [`Dataplane`] that it was made from.
pub struct NodeWriter {
    nodes: Array<MapData, NodeEntry>,
    /// The map that devices which are not switched yet still read.
    old: Option<Array<MapData, NodeEntry>>,
    /// None where only verdicts are renewed; two while devices are switched from one map to another.
    ports: Vec<HashMap<MapData, PortKey, u32>>,
}

impl Dataplane {
    /// A writer of node entries that does not wait for this handle.
    pub fn node_writer(&self) -> Result<NodeWriter, Error> {
        NodeWriter::new(self)
    }
}

impl NodeWriter {
    fn new(dataplane: &Dataplane) -> Result<Self, Error> {
        let pinned = &dataplane.options.pin_dir;
        let staging = names::staging(pinned);
        let staged = dataplane.staged.as_ref().is_some_and(|staged| staged.old_nodes.is_some());
        let (nodes, old) =
            if staged { (open(&staging)?, Some(open(pinned)?)) } else { (open(pinned)?, None) };
        let mut ports = vec![open_ports(pinned)?];
        if staging.join(names::PORTS).exists() {
            ports.push(open_ports(&staging)?);
        }
        Ok(Self { nodes, old, ports })
    }

    /// Over the map that is pinned below `pin_dir`, before anything is loaded, for verdicts alone; with every entry in it that has
    /// an owner. `None` where there is no such map, or one of another layout.
    pub fn pinned(pin_dir: &Path) -> Option<(Self, Vec<(u32, NodeEntry)>)> {
        let nodes = open(pin_dir).ok()?;
        let entries = (0..).zip(nodes.iter()).filter_map(|(index, entry)| Some((index, entry.ok()?)));
        let owned = entries.filter(|(_, entry)| entry.generation != 0).collect();
        Some((Self { nodes, old: None, ports: Vec::new() }, owned))
    }

    /// Writes one node's entry.
    pub fn write_node(&mut self, index: u32, entry: &NodeEntry) -> Result<(), Error> {
        if index >= MAX_NODES {
            return Err(Error::NodeIndex(index));
        }
        if let Some(old) = self.old.as_mut().filter(|old| index < old.len()) {
            old.set(index, entry, 0).map_err(Error::map(names::NODES))?;
        }
        self.nodes.set(index, entry, 0).map_err(Error::map(names::NODES))
    }

    /// Has the datapath pass what goes to a port, or notes that an address has such a port ([`PortKey::kept_address`]).
    pub fn keep_port(&mut self, key: &PortKey) -> Result<(), Error> {
        for ports in &mut self.ports {
            insert(ports, key, &port_flags::KEEP).map_err(Error::map(names::PORTS))?;
        }
        Ok(())
    }

    /// Takes that back.
    pub fn let_go_of_port(&mut self, key: &PortKey) -> Result<(), Error> {
        for ports in &mut self.ports {
            match ports.remove(key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(Error::map(names::PORTS)(error)),
            }
        }
        Ok(())
    }
}

fn open(dir: &Path) -> Result<Array<MapData, NodeEntry>, Error> {
    MapData::from_pin(dir.join(names::NODES))
        .and_then(Map::from_map_data)
        .and_then(Array::try_from)
        .map_err(Error::map(names::NODES))
}

fn open_ports(dir: &Path) -> Result<HashMap<MapData, PortKey, u32>, Error> {
    MapData::from_pin(dir.join(names::PORTS))
        .and_then(Map::from_map_data)
        .and_then(HashMap::try_from)
        .map_err(Error::map(names::PORTS))
}
