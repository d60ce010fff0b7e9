//! The maps as the kernel has them, and what a packet meets there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey, Verdict, backend_flags, port_flags};

use crate::{
    cluster::{ClusterView, NodeIx, NodeSet, Protocol, parse},
    enforce::{NewView, place::cuts},
    plan::{At, ExemptIndex, ExemptPort, Exemptions, Slot, Step, Tables, exemptions},
};

/// The node on which the agent runs.
pub(super) const OWN: &str = "a";

/// A view, and what must be exempt in it by `plan::exemptions`.
pub(super) struct Cluster {
    pub(super) view: Arc<ClusterView>,
    pub(super) text: String,
    index: ExemptIndex,
    /// By which nodes are cut, a bit for each position.
    known: Mutex<HashMap<u64, Arc<Exemptions>>>,
}

impl Cluster {
    pub(super) fn parse(text: &str) -> Arc<Self> {
        let view = parse(text, true).unwrap_or_else(|error| panic!("{error}\n{text}"));
        Self::new(view, text)
    }

    /// As a source of objects told it.
    pub(super) fn told(view: ClusterView) -> Arc<Self> {
        Self::new(view, "")
    }

    fn new(view: ClusterView, text: &str) -> Arc<Self> {
        let index = ExemptIndex::new(&view);
        Arc::new(Self { view: Arc::new(view), text: text.to_owned(), index, known: Mutex::default() })
    }

    /// What is exempt while these nodes are cut, a bit for each position.
    pub(super) fn exempt(&self, cut: u64) -> Arc<Exemptions> {
        let mut known = self.known.lock().unwrap();
        let work_out = || {
            let is_cut = |node: &NodeIx| cut >> node.position() & 1 == 1;
            let nodes: NodeSet = self.view.indexed().map(|(node, _)| node).filter(is_cut).collect();
            Arc::new(exemptions(&self.view, &self.index, OWN, None, &nodes))
        };
        Arc::clone(known.entry(cut).or_insert_with(work_out))
    }
}

/// A view whose backends the map may hold.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) new: Arc<NewView>,
    pub(super) cluster: Arc<Cluster>,
}

/// The maps.
#[derive(Clone, Default)]
pub(super) struct Maps {
    pub(super) nodes: BTreeMap<u32, NodeEntry>,
    pub(super) exempt: BTreeMap<PortKey, u32>,
    /// Keys of it that an earlier agent left, and of which this one was not told.
    pub(super) unknown: BTreeSet<PortKey>,
    pub(super) backends: HashMap<Addr, BackendEntry>,
    pub(super) endpoints: BTreeSet<PortKey>,
    /// The view that was written last, and those that were written in part since.
    pub(super) views: Vec<Known>,
}

impl Maps {
    /// Whether the entry at this place cuts packets to backends of this generation.
    pub(super) fn is_cut(&self, slot: Slot, now: u64) -> bool {
        let entry = self.nodes.get(&slot.index);
        entry.is_some_and(|entry| entry.generation == slot.generation && cuts(entry) && entry.until > now)
    }

    /// Places whose entry cuts.
    pub(super) fn cut(&self, now: u64) -> impl Iterator<Item = Slot> {
        let cut = move |(_, entry): &(&u32, &NodeEntry)| cuts(entry) && entry.until > now;
        self.nodes
            .iter()
            .filter(cut)
            .map(|(index, entry)| Slot { index: *index, generation: entry.generation })
    }

    /// Which nodes of a view are cut, a bit for each position.
    pub(super) fn cut_of(&self, known: &Known, now: u64) -> u64 {
        let mut cut = 0;
        for (position, node) in known.cluster.view.nodes.iter().enumerate() {
            let member = known.new.members.get(node.name.as_str());
            if member.is_some_and(|member| self.is_cut(member.slot, now)) {
                cut |= 1 << position;
            }
        }
        cut
    }

    fn says(&self, key: &PortKey, flags: u32) -> bool {
        self.exempt.get(key) == Some(&flags)
    }

    /// Whether a packet to this port is cut: backend entry, node entry, exemption.
    fn drops(&self, port: &ExemptPort, now: u64) -> bool {
        let addr: Addr = port.address.into();
        let Some(backend) = self.backends.get(&addr) else { return false };
        let slot = Slot { index: backend.node, generation: backend.generation };
        if !self.is_cut(slot, now) {
            return false;
        }
        let endpoint = PortKey::endpoint(addr, port.port, port.protocol.number());
        if backend.flags & backend_flags::PORT_SCOPED != 0 {
            return self.endpoints.contains(&endpoint) && !self.says(&port.key(), port_flags::EXEMPT);
        }
        let passes = self.says(&PortKey::exempt_address(addr), port_flags::EXEMPT)
            && !self.says(&port.key(), port_flags::CUT);
        !passes && !self.says(&port.key(), port_flags::EXEMPT)
    }

    /// Ports of an address that an entry cuts although the address passes, and one that no entry ever names: answers to an endpoint there may come to any of these.
    fn by_which_answers_come(&self, at: At) -> Vec<ExemptPort> {
        let (node, address) = at;
        let port = |port, protocol| ExemptPort { node, address, port, protocol };
        let addr = Addr::from(address);
        let cut = self.exempt.iter().filter(|(key, flags)| key.addr == addr && **flags == port_flags::CUT);
        let cut = cut.filter(|(key, _)| !self.unknown.contains(*key));
        let cut = cut.filter_map(|(key, _)| Some(port(key.port, Protocol::of(key.protocol)?)));
        cut.chain([port(40_000, Protocol::Tcp)]).collect()
    }

    /// A packet may come now: no port is cut that must be exempt, and no answer to an address that passes, in any view whose backends the map may hold.
    pub(super) fn check(&self, now: u64) -> Result<(), String> {
        for known in &self.views {
            let cut = self.cut_of(known, now);
            if cut == 0 {
                continue;
            }
            let exemptions = known.cluster.exempt(cut);
            let epoch = known.new.epoch;
            if let Some(port) = exemptions.ports.keys().find(|port| self.drops(port, now)) {
                return Err(format!(
                    "{} is cut and must be exempt in {epoch:?}, nodes {cut:b}",
                    port.backend()
                ));
            }
            for (at, named) in &exemptions.whole {
                let answers = self.by_which_answers_come(*at);
                let lost = answers.iter().find(|port| !named.contains(port) && self.drops(port, now));
                if let Some(port) = lost {
                    return Err(format!(
                        "an answer to {} is cut in {epoch:?}, nodes {cut:b}",
                        port.backend()
                    ));
                }
            }
        }
        Ok(())
    }

    /// What tables have in them.
    pub(super) fn tables(&self) -> Tables {
        let ports = self.endpoints.iter().map(|key| (*key, port_flags::CUT)).collect();
        Tables { backends: self.backends.clone(), ports }
    }

    /// One write of the tables' writer.
    pub(super) fn write(&mut self, step: Step) {
        let lay = match step {
            Step::DropPort(key) => self.endpoints.remove(&key),
            Step::DropBackend(addr) => self.backends.remove(&addr).is_some(),
            Step::PutBackend(addr, entry) => self.backends.insert(addr, entry).is_none(),
            Step::PutPort(key, _, lies) => {
                assert_eq!(!self.endpoints.insert(key), lies, "{step:?}");
                true
            }
        };
        assert!(lay, "{step:?} of what did not lie there, or did already");
    }

    /// The name in an entry.
    pub(super) fn name(&self, index: u32) -> String {
        let name = self.nodes.get(&index).map(|entry| entry.name).unwrap_or_default();
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
    }

    /// Entries that have an owner, as an agent finds them.
    pub(super) fn pinned(&self) -> Vec<(u32, NodeEntry)> {
        let owned = self.nodes.iter().filter(|(_, entry)| entry.generation != 0);
        owned.map(|(index, entry)| (*index, *entry)).collect()
    }
}

/// What an entry says, in a word.
pub(super) fn word(entry: &NodeEntry) -> &'static str {
    match (entry.verdict == Verdict::Healthy as u32, cuts(entry)) {
        (true, _) if entry.name == [0; 28] => "unused",
        (true, _) => "healthy",
        (false, true) => "cut",
        (false, false) => "observe",
    }
}

/// The places of nodes; a place that was given up is given away again at once.
#[derive(Clone, Default)]
pub(super) struct Slots {
    of: BTreeMap<String, Slot>,
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl Slots {
    /// The places as an agent finds them in the maps.
    pub(super) fn adopt(maps: &Maps) -> Self {
        let mut this = Self::default();
        for (&index, entry) in &maps.nodes {
            this.note(index, entry.generation);
            let name = maps.name(index);
            if !name.is_empty() {
                this.of.insert(name, Slot { index, generation: entry.generation });
            }
        }
        for backend in maps.backends.values() {
            this.note(backend.node, backend.generation);
        }
        let used: BTreeSet<u32> = this.of.values().map(|slot| slot.index).collect();
        this.free = (0..this.generations.len() as u32).filter(|index| !used.contains(index)).collect();
        let generations = &this.generations;
        // A backend may bear a later generation than its node's entry.
        this.of.retain(|_, slot| generations[slot.index as usize] == slot.generation);
        let kept: BTreeSet<u32> = this.of.values().map(|slot| slot.index).collect();
        this.free.extend(used.difference(&kept));
        this
    }

    fn note(&mut self, index: u32, generation: u32) {
        let at = index as usize;
        if self.generations.len() <= at {
            self.generations.resize(at + 1, 0);
        }
        self.generations[at] = self.generations[at].max(generation);
    }

    pub(super) fn reconcile(&mut self, view: &ClusterView) {
        let gone: Vec<String> = self.of.keys().filter(|name| view.node(name).is_none()).cloned().collect();
        for name in gone {
            self.free.extend(self.of.remove(&name).map(|slot| slot.index));
        }
        for node in &view.nodes {
            if self.of.contains_key(node.name.as_str()) {
                continue;
            }
            let index = self.free.pop().unwrap_or(self.generations.len() as u32);
            self.note(index, 0);
            let generation = self.generations[index as usize] + 1;
            self.generations[index as usize] = generation;
            self.of.insert(node.name.to_string(), Slot { index, generation });
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Slot> {
        self.of.get(name).copied()
    }
}
