//! Maps for the thread that writes tables. This thread does not wait for devices that are being attached.

use std::sync::{Arc, Weak};

use aya::maps::{Array, HashMap, MapData};
use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey, port_kinds};

use super::{entries::each, error::Error, lock::PinLock, maps::owned_nodes, names, staging::Staged, sys};

/// The maps that one thread writes tables into, and `nodes`, which it only reads. If maps are staged, these are the new maps.
pub struct TableMaps {
    pub(super) backends: HashMap<MapData, Addr, BackendEntry>,
    pub(super) ports: HashMap<MapData, PortKey, u32>,
    pub(super) nodes: Array<MapData, NodeEntry>,
    /// As long as this value lives, devices may still read the old maps.
    pub(super) still_staged: Weak<Staged>,
    pub(super) _lock: Arc<PinLock>,
}

impl TableMaps {
    /// Every backend in the map.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn backends(&self) -> Result<Vec<(Addr, BackendEntry)>, Error> {
        let mut backends = Vec::new();
        each(&self.backends, names::BACKENDS, |addr, entry| backends.push((addr, entry)))?;
        Ok(backends)
    }

    /// Every node index that has or had an owner: the verdicts to adopt, and the generations to continue from.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn owned(&self) -> Result<Vec<(u32, NodeEntry)>, Error> {
        owned_nodes(&self.nodes)
    }

    /// Every entry of `nodes`, by its index.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn nodes(&self) -> Result<Vec<NodeEntry>, Error> {
        let empty = NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] };
        sys::values(&self.nodes, empty).map_err(Error::call("read the map nodes"))
    }

    /// Every entry of `ports` about an exemption, with its flags.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
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
