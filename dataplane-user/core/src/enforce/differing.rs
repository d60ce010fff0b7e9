//! Compares nodes' entries and exempt ports as read in the maps with what [`World`] says of them.

use std::collections::{BTreeMap, BTreeSet};

use nodefence_common::{NodeEntry, PortKey, Verdict, port_flags};

use super::world::World;
use crate::plan::{Slot, name_field};

/// Entries and keys that are not as they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differing {
    /// Places.
    pub nodes: BTreeSet<u32>,
    /// Keys of exemptions.
    pub ports: BTreeSet<PortKey>,
}

impl Differing {
    /// What differs in both comparisons. A verdict that is on its way into the map differs in one only.
    pub fn both(&self, other: &Self) -> Self {
        Self {
            nodes: self.nodes.intersection(&other.nodes).copied().collect(),
            ports: self.ports.intersection(&other.ports).copied().collect(),
        }
    }

    /// How many entries and keys differ.
    pub fn len(&self) -> usize {
        self.nodes.len() + self.ports.len()
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl World {
    /// Compares what was read with this. `nodes`: every entry, by its place. `exempt`: every key of an exemption with its flags. `now`: CLOCK_MONOTONIC, ns. Nodes
    /// whose entry could not be written are left out: their write is tried again anyway.
    pub fn differing(&self, nodes: &[NodeEntry], exempt: &[(PortKey, u32)], now: u64) -> Differing {
        let mut differing = Differing::default();
        let Some(view) = &self.view else { return differing };
        let mut owned = BTreeSet::new();
        for (name, member) in view.members.iter() {
            owned.insert(member.slot.index);
            if self.failed.contains_key(name) || self.lapsing.get(member.slot).is_some() {
                continue;
            }
            let entry = nodes.get(member.slot.index as usize);
            let as_told = entry.is_some_and(|entry| {
                entry.generation == member.slot.generation
                    && entry.name == name_field(name)
                    && verdict(entry, now) == self.told(member.slot)
            });
            if !as_told {
                differing.nodes.insert(member.slot.index);
            }
        }
        for (index, entry) in (0..).zip(nodes).filter(|(index, _)| !owned.contains(index)) {
            let slot = Slot { index, generation: entry.generation };
            let is_told = self.told(slot).is_some() || self.lapsing.get(slot).is_some();
            if verdict(entry, now).is_some() && !is_told {
                differing.nodes.insert(index);
            }
        }
        let wanted = self.exemptions().keys();
        let there: BTreeMap<_, _> = exempt.iter().copied().collect();
        // A port to be cut at an address that passes may have found no room in the map. The port passes, and the write is tried again.
        let is_missing =
            |(key, flags): &(&PortKey, &u32)| **flags == port_flags::EXEMPT && !there.contains_key(*key);
        let missing = wanted.iter().filter(is_missing).map(|(key, _)| *key);
        let other = there.iter().filter(|(key, flags)| wanted.get(*key) != Some(*flags)).map(|(key, _)| *key);
        differing.ports = missing.chain(other).collect();
        differing
    }

    /// The action of the verdict that a place bears, as this says.
    fn told(&self, slot: Slot) -> Option<u32> {
        let bearer = self.enforced.get(slot).or_else(|| self.observed.get(slot));
        bearer.map(|bearer| bearer.action as u32)
    }
}

/// The action of an entry whose verdict holds.
fn verdict(entry: &NodeEntry, now: u64) -> Option<u32> {
    (entry.verdict == Verdict::Flagged as u32 && entry.until > now).then_some(entry.action)
}
