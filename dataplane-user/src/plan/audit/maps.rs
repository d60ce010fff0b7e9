//! Our maps beside what was planned for them.
use std::collections::{BTreeMap, BTreeSet};

use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey, Verdict, port_flags};

use super::{Difference, Found, Grace, Kind, Mend, Subject};
use crate::{
    cluster::ClusterView,
    plan::{Mode, Policy, Slot, backend_entry, node_entry},
};

/// What is planned, held against what is there entry by entry: there may be hundreds of thousands, and neither is copied.
#[derive(Debug)]
pub struct Maps {
    backends: Planned<Addr, BackendEntry>,
    ports: Planned<PortKey, u32>,
    nodes: BTreeMap<u32, NodeEntry>,
    /// CLOCK_MONOTONIC, in ns.
    now: u64,
}

/// What ought to lie in a map, in order, and what of it was seen there.
#[derive(Debug)]
struct Planned<K, V> {
    entries: Vec<(K, V)>,
    seen: Vec<bool>,
}

impl<K: Copy + Ord, V: Copy + PartialEq> Planned<K, V> {
    fn new(mut entries: Vec<(K, V)>) -> Self {
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        let seen = vec![false; entries.len()];
        Self { entries, seen }
    }

    /// What is wrong with an entry that is there.
    fn look(&mut self, key: K, there: V, text: impl Fn(V) -> String) -> Option<String> {
        let Ok(at) = self.entries.binary_search_by_key(&key, |(key, _)| *key) else {
            return Some("not planned".to_owned());
        };
        self.seen[at] = true;
        let planned = self.entries[at].1;
        (planned != there).then(|| format!("{} instead of {}", text(there), text(planned)))
    }

    fn missing(&self) -> impl Iterator<Item = (K, V)> {
        self.entries.iter().zip(&self.seen).filter(|(_, seen)| !**seen).map(|(entry, _)| *entry)
    }
}

impl Maps {
    /// The plan: the tables as [`crate::plan::backend_tables`] has them, entries of nodes, and what is kept. `verdict`: how a node's verdict is
    /// carried out, where it bears one; `now`: CLOCK_MONOTONIC, in ns.
    pub fn new(
        view: &ClusterView,
        slots: impl Fn(&str) -> Option<Slot>,
        policy: &Policy<'_>,
        verdict: impl Fn(&str) -> Option<Mode>,
        kept: &BTreeSet<PortKey>,
        now: u64,
    ) -> Self {
        let (mut backends, mut nodes) = (Vec::with_capacity(view.backends()), BTreeMap::new());
        let mut ports: Vec<(PortKey, u32)> = kept.iter().map(|key| (*key, port_flags::KEEP)).collect();
        for node in &view.nodes {
            let Some(slot) = slots(&node.name) else { continue };
            let mode = verdict(&node.name);
            let carried_out = Policy { mode: mode.unwrap_or(policy.mode), ..*policy };
            let until = mode.map(|_| u64::MAX);
            nodes.insert(slot.index, node_entry(&node.name, slot, &carried_out, until));
            for backend in &node.backends {
                backends.push((backend.addr(), backend_entry(&node.name, slot, backend, policy)));
                ports.extend(backend.port_key().map(|key| (key, port_flags::CUT)));
            }
        }
        Self { backends: Planned::new(backends), ports: Planned::new(ports), nodes, now }
    }

    /// An entry of `backends`.
    pub fn backend(&mut self, addr: Addr, entry: BackendEntry, out: &mut Found) {
        if let Some(detail) = self.backends.look(addr, entry, describe) {
            add(Subject::Backend(addr), detail, out);
        }
    }

    /// An entry of `ports`, of either kind.
    pub fn port(&mut self, key: PortKey, flags: u32, out: &mut Found) {
        if let Some(detail) = self.ports.look(key, flags, flags_text) {
            add(Subject::Port(key), detail, out);
        }
    }

    /// An entry of `nodes` that is or was in use.
    pub fn node(&mut self, index: u32, entry: &NodeEntry, out: &mut Found) {
        let wrong = match self.nodes.remove(&index) {
            Some(planned) => differs(&planned, entry, self.now),
            None => verdict(entry, self.now).map(|_| "bears a verdict, and is nobody's".to_owned()),
        };
        if let Some(detail) = wrong {
            add(Subject::Node(index), detail, out);
        }
    }

    /// To be called when all were looked at: what is missing.
    pub fn finish(self, out: &mut Found) {
        for (addr, entry) in self.backends.missing() {
            add(Subject::Backend(addr), format!("missing: {}", describe(entry)), out);
        }
        for (key, flags) in self.ports.missing() {
            add(Subject::Port(key), format!("missing: {}", flags_text(flags)), out);
        }
        for index in self.nodes.into_keys() {
            add(Subject::Node(index), "missing".to_owned(), out);
        }
    }
}

fn describe(entry: BackendEntry) -> String {
    format!("node index {} (generation {}), flags {}", entry.node, entry.generation, entry.flags)
}

fn flags_text(flags: u32) -> String {
    format!("flags {flags}")
}

/// What of a node's entry is not as planned.
fn differs(planned: &NodeEntry, there: &NodeEntry, now: u64) -> Option<String> {
    if (planned.generation, planned.name) != (there.generation, there.name) {
        return Some(format!("generation {} instead of {}", there.generation, planned.generation));
    }
    match (verdict(planned, now), verdict(there, now)) {
        (planned, there) if planned == there => None,
        (None, _) => Some("bears a verdict, though it is not flagged".to_owned()),
        (_, None) => Some("bears no verdict that holds, though it is flagged".to_owned()),
        (Some(planned), Some(there)) => Some(format!("action {there} instead of {planned}")),
    }
}

/// The action of a verdict that holds.
fn verdict(entry: &NodeEntry, now: u64) -> Option<u32> {
    (entry.verdict == Verdict::Flagged as u32 && entry.until > now).then_some(entry.action)
}

fn add(subject: Subject, detail: String, out: &mut Found) {
    out.add(Kind::MapEntry, || Difference {
        kind: Kind::MapEntry,
        subject,
        service: None,
        detail,
        grace: Grace::Sync,
        mend: Some(Mend::Write),
    });
}
