//! Writes tables and verdicts into the maps through the library, in the agent's order.

use std::collections::BTreeMap;

use nodefence::{
    dataplane::{Dataplane, Error, NodeWriter, WriteReport},
    plan::Tables,
};
use nodefence_common::{NodeEntry, Verdict};

/// The expected content of the maps.
#[derive(Clone, Debug, Default)]
pub struct ExpectedMaps {
    /// Backends and host-network ports.
    pub tables: Tables,
    /// Every node by its index. An index without an entry is healthy and unused.
    pub nodes: BTreeMap<u32, NodeEntry>,
}

impl ExpectedMaps {
    /// Writes all of it into the maps: first new owners of indexes and indexes without an owner, both healthy; then the tables; then verdicts. Equal entries are
    /// not written.
    ///
    /// # Errors
    /// Where a map cannot be read or written.
    pub fn write(&self, dataplane: &mut Dataplane) -> Result<WriteReport, Error> {
        let mut writer = NodeWriter::new(&dataplane.devices)?;
        let mut there: BTreeMap<u32, NodeEntry> = dataplane.tables.owned()?.into_iter().collect();
        for (index, entry) in &self.nodes {
            if there.get(index).is_none_or(|there| there.generation != entry.generation) {
                writer.write_node(*index, &healthy(entry))?;
                there.insert(*index, healthy(entry));
            }
        }
        for (index, entry) in &mut there {
            if !self.nodes.contains_key(index) && *entry != healthy(entry) {
                *entry = healthy(entry);
                writer.write_node(*index, entry)?;
            }
        }
        let report = dataplane.write(&self.tables)?;
        for (index, entry) in there {
            // The generation stays, so that the index's next owner gets a higher one.
            let unused = NodeEntry { name: [0; 28], ..healthy(&entry) };
            let wanted = self.nodes.get(&index).copied().unwrap_or(unused);
            if wanted != entry {
                writer.write_node(index, &wanted)?;
            }
        }
        Ok(report)
    }
}

fn healthy(entry: &NodeEntry) -> NodeEntry {
    NodeEntry { verdict: Verdict::Healthy as u32, action: 0, until: 0, ..*entry }
}
