//! Writes tables and verdicts into the maps through the library, in the order in which the agent writes them.

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
    /// The nodes by their indexes. An index without an entry is healthy and unused.
    pub nodes: BTreeMap<u32, NodeEntry>,
}

impl ExpectedMaps {
    /// Writes everything into the maps. First come new owners of indexes and indexes without an owner, both as healthy; then the tables; then the verdicts.
    /// Entries that are equal already are not written.
    ///
    /// # Errors
    /// Fails if a map cannot be read or written.
    pub fn write(&self, dataplane: &mut Dataplane) -> Result<WriteReport, Error> {
        let mut writer = NodeWriter::new(&dataplane.devices)?;
        let mut found: BTreeMap<u32, NodeEntry> = dataplane.tables.owned()?.into_iter().collect();
        for (index, entry) in &self.nodes {
            if found.get(index).is_none_or(|found| found.generation != entry.generation) {
                writer.write_node(*index, &healthy(entry))?;
                found.insert(*index, healthy(entry));
            }
        }
        for (index, entry) in &mut found {
            if !self.nodes.contains_key(index) && *entry != healthy(entry) {
                *entry = healthy(entry);
                writer.write_node(*index, entry)?;
            }
        }
        let report = dataplane.write(&self.tables)?;
        for (index, entry) in found {
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
