//! Handles of their own for the one who writes tables: whatever is attached meanwhile does not hold it up.

use aya::maps::{HashMap, MapData};
use nodefence_common::{Addr, BackendEntry, PortKey};

use super::{
    error::Error,
    handle::Dataplane,
    names,
    node_writer::open_both,
    write::{self, Both, WriteReport},
};
use crate::plan::{Delta, LeftOut, Tables};

/// The maps that tables lie in, to be written by one thread. Independent of the [`Dataplane`] that it was made from;
/// where maps are staged, these are the new ones.
pub struct TableMaps {
    backends: HashMap<MapData, Addr, BackendEntry>,
    ports: HashMap<MapData, PortKey, u32>,
}

impl Dataplane {
    /// Handles that do not wait for this one. Once the first tables are written by them, [`Dataplane::filled`] is to be called.
    ///
    /// # Errors
    /// Where a pin cannot be opened.
    pub fn table_maps(&self) -> Result<TableMaps, Error> {
        let (backends, _) = open_both(self, names::BACKENDS)?;
        let (ports, _) = open_both(self, names::PORTS)?;
        Ok(TableMaps { backends, ports })
    }
}

impl TableMaps {
    const fn both(&mut self) -> Both<'_> {
        Both { backends: &mut self.backends, ports: &mut self.ports }
    }

    /// All that tables have in the maps.
    ///
    /// # Errors
    /// Where a map cannot be read.
    pub fn read(&mut self) -> Result<Tables, Error> {
        write::read(&self.both())
    }

    /// Makes the writes in their order. A full map is no error: what does not fit is told, and passes. Every generation that is named must lie in `nodes`
    /// before ([`super::NodeWriter`]).
    ///
    /// # Errors
    /// Where a map cannot be written. What lies in the maps is not known then.
    pub fn write(&mut self, delta: &Delta) -> Result<(WriteReport, LeftOut), Error> {
        write::write(&mut self.both(), delta)
    }
}
