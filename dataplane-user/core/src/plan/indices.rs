use std::collections::{BTreeMap, HashMap, VecDeque};

use nodefence_common::{BackendEntry, MAX_NODES, NodeEntry};

use crate::cluster::NodeName;

/// A node's place in the kernel's map `nodes`, and how many owners that place has had. It is not the node's position in a view
/// ([`crate::cluster::NodeIx`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Index into `nodes`.
    pub index: u32,
    /// Never 0: an unused entry has 0.
    pub generation: u32,
}

/// More nodes than `nodes` has places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} nodes, but only {MAX_NODES} fit")]
pub struct Full(pub usize);

/// The places of nodes. A node keeps its place as long as it exists, whatever the order in which nodes are listed. A
/// place that gets a new owner gets a new generation, so that entries written for its former owner have no effect.
#[derive(Clone, Debug, Default)]
pub struct Indices {
    slots: BTreeMap<NodeName, Slot>,
    /// The last generation of each place; places beyond its end were never used.
    generations: Vec<u32>,
    /// Places that were given up, longest ago first, and the number of the view that gave each up.
    free: VecDeque<(u32, u64)>,
    /// Places that an earlier agent left in the pinned maps, by [`name_field`].
    adoptable: HashMap<[u8; 28], Slot>,
}

impl Indices {
    /// Takes over the places in the pinned maps, so that a restart of the agent moves no node. A name field that two
    /// entries bear counts for neither.
    pub fn adopt(nodes: &[(u32, NodeEntry)], backends: impl IntoIterator<Item = BackendEntry>) -> Self {
        let mut this = Self::default();
        let mut twice = Vec::new();
        for &(index, entry) in nodes.iter().filter(|(index, _)| *index < MAX_NODES) {
            this.note(index, entry.generation);
            if entry.generation != 0 && entry.name[0] != 0 {
                let slot = Slot { index, generation: entry.generation };
                if this.adoptable.insert(entry.name, slot).is_some() {
                    twice.push(entry.name);
                }
            }
        }
        for name in twice {
            this.adoptable.remove(&name);
        }
        // A backend may still bear a generation that its node's entry has lost.
        for entry in backends.into_iter().filter(|entry| entry.node < MAX_NODES) {
            this.note(entry.node, entry.generation);
        }
        // Whatever lies in these places: without them an agent could not start with as many nodes as fit.
        this.free = (0..this.generations.len() as u32).map(|index| (index, 0)).collect();
        this
    }

    fn note(&mut self, index: u32, generation: u32) {
        let at = index as usize;
        if self.generations.len() <= at {
            self.generations.resize(at + 1, 0);
        }
        self.generations[at] = self.generations[at].max(generation);
    }

    /// Gives each of these nodes a place, and takes the places of all others back. `view`: the number of the view whose nodes these are. `written`: that of the
    /// last view whose tables, and no others, lie in the maps. A place to which backends of its former owner may still lead is given to no node. Returns how many
    /// nodes have no place for that reason, and are to be tried again.
    ///
    /// # Errors
    /// Where there are more nodes than places; nothing is changed then.
    pub fn reconcile<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a NodeName>,
        view: u64,
        written: u64,
    ) -> Result<usize, Full> {
        let mut names: Vec<&NodeName> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > MAX_NODES as usize {
            return Err(Full(names.len()));
        }
        let gone: Vec<NodeName> =
            self.slots.keys().filter(|name| names.binary_search(name).is_err()).cloned().collect();
        for name in gone {
            if let Some(slot) = self.slots.remove(&name) {
                self.free.push_back((slot.index, view));
            }
        }
        let new: Vec<&NodeName> = names.into_iter().filter(|name| !self.slots.contains_key(*name)).collect();
        let mut waiting = 0;
        for name in self.take_adoptable(new) {
            let index = if (self.generations.len() as u32) < MAX_NODES {
                self.generations.push(0);
                self.generations.len() as u32 - 1
            } else if let Some((index, _)) = self.free.pop_front_if(|(_, given_up)| *given_up <= written) {
                index
            } else {
                waiting += 1;
                continue;
            };
            let generation = match self.generations[index as usize].wrapping_add(1) {
                0 => 1,
                generation => generation,
            };
            self.generations[index as usize] = generation;
            self.slots.insert(name.clone(), Slot { index, generation });
        }
        Ok(waiting)
    }

    /// Gives nodes that the pinned maps know their old place; returns the others. Only the first list of nodes is compared
    /// with the maps.
    fn take_adoptable<'a>(&mut self, names: Vec<&'a NodeName>) -> Vec<&'a NodeName> {
        if self.adoptable.is_empty() {
            return names;
        }
        let mut claims: HashMap<[u8; 28], usize> = HashMap::new();
        for name in &names {
            *claims.entry(name_field(name)).or_default() += 1;
        }
        let adoptable = std::mem::take(&mut self.adoptable);
        let mut rest = Vec::new();
        for name in names {
            let field = name_field(name);
            match adoptable.get(&field) {
                // The place's last generation must be this entry's, or a backend bears a later one.
                Some(&slot)
                    if claims[&field] == 1 && self.generations[slot.index as usize] == slot.generation =>
                {
                    self.free.retain(|(index, _)| *index != slot.index);
                    self.slots.insert(name.clone(), slot);
                }
                _ => rest.push(name),
            }
        }
        rest
    }

    /// The place of a node.
    pub fn get(&self, name: &str) -> Option<Slot> {
        self.slots.get(name).copied()
    }

    /// All nodes and their places, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, Slot)> {
        self.slots.iter().map(|(name, slot)| (name, *slot))
    }
}

/// A node's name as its entry bears it: unchanged where it fits, else its first 8 and last 10 bytes around eight hex
/// digits of its FNV-1a hash (32 bits), because names of one pool differ only at their end or in their middle.
pub fn name_field(name: &str) -> [u8; 28] {
    let mut field = [0; 28];
    let bytes = name.as_bytes();
    if bytes.len() <= field.len() {
        field[..bytes.len()].copy_from_slice(bytes);
        return field;
    }
    let hash =
        bytes.iter().fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    field[..8].copy_from_slice(&bytes[..8]);
    field[8..18].copy_from_slice(format!("~{hash:08x}~").as_bytes());
    field[18..].copy_from_slice(&bytes[bytes.len() - 10..]);
    field
}
