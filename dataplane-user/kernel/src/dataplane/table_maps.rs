//! Maps for the thread that writes tables: it does not wait for devices that are attached meanwhile.

use std::sync::{Arc, Weak};

use aya::maps::{Array, HashMap, MapData};
use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey, port_kinds};

use super::{entries::each, error::Error, lock::PinLock, maps::owned_nodes, names, staging::Staged, sys};

/// The maps that tables lie in, to be written by one thread, and the other ones beside them, to be read. Where maps are staged, these are the new ones.
pub struct TableMaps {
    pub(super) backends: HashMap<MapData, Addr, BackendEntry>,
    pub(super) ports: HashMap<MapData, PortKey, u32>,
    pub(super) nodes: Array<MapData, NodeEntry>,
    /// Devices may still read the old maps, for as long as it lives.
    pub(super) still_staged: Weak<Staged>,
    pub(super) _lock: Arc<PinLock>,
}

impl TableMaps {
    /// Every backend in the map.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn backends(&self) -> Result<Vec<(Addr, BackendEntry)>, Error> {
        let mut backends = Vec::new();
        each(&self.backends, names::BACKENDS, |addr, entry| backends.push((addr, entry)))?;
        Ok(backends)
    }

    /// Every node index that has or had an owner: verdicts to adopt, and generations to go on from.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn owned(&self) -> Result<Vec<(u32, NodeEntry)>, Error> {
        owned_nodes(&self.nodes)
    }

    /// Every entry of `nodes`, by its index.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn nodes(&self) -> Result<Vec<NodeEntry>, Error> {
        let empty = NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] };
        sys::values(&self.nodes, empty).map_err(Error::call("read the map nodes"))
    }

    /// The entries of the map, and how they are stored.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn exempt(&self) -> Result<Vec<(PortKey, u32)>, Error> {
        let mut exempt = Vec::new();
        each(&self.ports, names::PORTS, |key, flags| {
            if key.kind == port_kinds::EXEMPT {
                exempt.push((key, flags));
            }
        })?;
        Ok(exempt)
    }
}
