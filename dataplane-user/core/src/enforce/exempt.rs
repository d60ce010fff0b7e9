//! What must lie in the map so that no cut takes from a Service all that it has, and what lies there.
//!
//! It is worked out for every view whose backends the map may hold: the one that was written last, and those that were handed
//! out since.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use nodefence_common::PortKey;

use super::{
    index::{ExemptIndex, Reindexed},
    now::Epoch,
    ports::ExemptPorts,
    shortage::Shortage,
};
use crate::plan::{KeptPort, Slot, Why};

/// A key that may lie in the map.
#[derive(Clone, Copy, Debug)]
struct Lies {
    /// It does, for certain: it was written, and nobody said that this failed.
    sure: bool,
    /// The node that it was last needed for.
    slot: Option<Slot>,
}

/// A key that must lie in the map.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// How many ports of all views need it.
    ports: u32,
    /// The node that it was last needed for.
    slot: Option<Slot>,
}

/// For which port a key is needed, and whose verdicts together make it so.
#[derive(Clone, Debug)]
pub(super) struct Blame {
    pub(super) port: KeptPort,
    /// The node of the port.
    pub(super) owner: Option<Slot>,
    pub(super) cut: Vec<Slot>,
}

/// Exemptions: needed and written.
#[derive(Debug, Default)]
pub(super) struct Exempt {
    /// The oldest first.
    views: Vec<(Epoch, Shortage)>,
    /// Of the latest view, were what is only observed enforced as well.
    would: Option<(Epoch, Shortage)>,
    /// Nodes that are cut or are about to be.
    cut: BTreeSet<Slot>,
    /// Nodes that would be.
    observed: BTreeSet<Slot>,
    needed: HashMap<PortKey, Need>,
    lies: HashMap<PortKey, Lies>,
    /// Needed, and not in the map for certain.
    missing: BTreeSet<PortKey>,
    /// Not needed, and perhaps in the map.
    surplus: BTreeSet<PortKey>,
    /// The key that was removed last, and the node that it was last needed for.
    removed: Option<(PortKey, Option<Slot>)>,
    /// Writes of these failed; they are tried again then (CLOCK_MONOTONIC, ns).
    later: BTreeMap<PortKey, u64>,
    /// A view was written: before, somebody else's backends lie in the map, and nothing that they may need is removed.
    settled: bool,
}

impl Exempt {
    /// A node is cut or about to be, or is so no more.
    pub(super) fn set_cut(&mut self, slot: Slot, cut: bool) {
        if cut == self.cut.contains(&slot) {
            return;
        }
        self.change_would(slot, |this| {
            if cut {
                this.cut.insert(slot);
            } else {
                this.cut.remove(&slot);
            }
        });
        let mut views = std::mem::take(&mut self.views);
        for (_, view) in &mut views {
            let changed = if cut { view.cut(slot) } else { view.spare(slot) };
            self.note(view.index(), &changed, cut);
        }
        self.views = views;
    }

    /// A node would be cut were what is observed enforced, or would be so no more.
    pub(super) fn set_observed(&mut self, slot: Slot, observed: bool) {
        self.change_would(slot, |this| {
            if observed {
                this.observed.insert(slot);
            } else {
                this.observed.remove(&slot);
            }
        });
    }

    fn change_would(&mut self, slot: Slot, change: impl FnOnce(&mut Self)) {
        let before = self.cut.contains(&slot) || self.observed.contains(&slot);
        change(self);
        let after = self.cut.contains(&slot) || self.observed.contains(&slot);
        if let Some((_, would)) = self.would.as_mut().filter(|_| before != after) {
            if after {
                would.cut(slot)
            } else {
                would.spare(slot)
            };
        }
    }

    fn note(&mut self, index: &ExemptIndex, ports: &[KeptPort], needed: bool) {
        for port in ports {
            for key in [port.address_key(), port.key()] {
                if needed { self.need(key, index.slot(port)) } else { self.unneed(key) }
            }
        }
    }

    fn need(&mut self, key: PortKey, slot: Option<Slot>) {
        let need = self.needed.entry(key).or_insert(Need { ports: 0, slot });
        need.ports += 1;
        need.slot = slot;
        self.surplus.remove(&key);
        // An earlier try that failed is no excuse for who needs it from now on: it is tried at once.
        self.later.remove(&key);
        self.list(key);
    }

    fn unneed(&mut self, key: PortKey) {
        let Some(need) = self.needed.get_mut(&key) else { return };
        need.ports -= 1;
        if need.ports > 0 {
            return;
        }
        let slot = need.slot;
        self.needed.remove(&key);
        self.missing.remove(&key);
        self.later.remove(&key);
        if let Some(lies) = self.lies.get_mut(&key) {
            lies.slot = slot;
            self.list(key);
        }
    }

    /// Backends of this view may lie in the map from now on. `since`: what changed since another view, where that is known.
    pub(super) fn open(
        &mut self,
        epoch: Epoch,
        index: &Arc<ExemptIndex>,
        since: Option<(Epoch, &Reindexed)>,
    ) {
        let is_cut = |slot| self.cut.contains(&slot);
        let would_be = |slot| self.cut.contains(&slot) || self.observed.contains(&slot);
        let base = since.and_then(|(base, changed)| {
            let (_, view) = self.views.iter().find(|(of, _)| *of == base)?;
            let (_, would) = self.would.as_ref().filter(|(of, _)| *of == base)?;
            let view = view.follow(Arc::clone(index), changed, is_cut);
            Some((view, would.follow(Arc::clone(index), changed, would_be)))
        });
        let (view, would) = base.unwrap_or_else(|| {
            let mut view = Shortage::new(Arc::clone(index));
            let mut would = view.clone();
            for slot in &self.cut {
                view.cut(*slot);
            }
            for slot in self.cut.union(&self.observed) {
                would.cut(*slot);
            }
            (view, would)
        });
        self.note(index, &ports_of(&view), true);
        self.views.push((epoch, view));
        self.would = Some((epoch, would));
    }

    /// Only backends of this view lie in the map from now on.
    pub(super) fn written(&mut self, epoch: Epoch) {
        self.settled = true;
        let views = std::mem::take(&mut self.views);
        for (of, view) in views {
            if of == epoch {
                self.views.push((of, view));
            } else {
                self.let_go(&view);
            }
        }
    }

    /// No backend of this view came into the map.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        let Some(at) = self.views.iter().position(|(of, _)| *of == epoch) else { return };
        let (_, view) = self.views.remove(at);
        self.let_go(&view);
    }

    fn let_go(&mut self, view: &Shortage) {
        self.note(view.index(), &ports_of(view), false);
    }

    /// The first key that is needed and must be written.
    pub(super) fn next_missing(&mut self) -> Option<PortKey> {
        let key = self.missing.pop_first()?;
        let slot = self.owner(key);
        self.lies.insert(key, Lies { sure: true, slot });
        Some(key)
    }

    /// Whether nothing is missing that is needed.
    pub(super) fn whole(&self) -> bool {
        self.missing.is_empty() && !self.later.keys().any(|key| self.needed.contains_key(key))
    }

    /// The first key that is not needed and must be removed, and the node of which more is cut then.
    pub(super) fn next_surplus(&mut self) -> Option<(PortKey, Option<Slot>)> {
        if !self.settled {
            return None;
        }
        let key = self.surplus.pop_first()?;
        let slot = self.lies.remove(&key).and_then(|lies| lies.slot);
        self.removed = Some((key, slot));
        Some((key, slot.filter(|slot| self.cut.contains(slot))))
    }

    /// A key could not be written, or removed: whether it lies there is not known.
    pub(super) fn failed(&mut self, key: PortKey, again: u64) {
        let removed = self.removed.take().filter(|(last, _)| *last == key).and_then(|(_, slot)| slot);
        let slot = self.owner(key).or(removed);
        self.lies.insert(key, Lies { sure: false, slot });
        self.missing.remove(&key);
        self.surplus.remove(&key);
        self.later.insert(key, again);
    }

    /// Has those tried again whose time has come.
    pub(super) fn retry(&mut self, now: u64) {
        let due: Vec<PortKey> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
        for key in due {
            self.later.remove(&key);
            self.list(key);
        }
    }

    fn list(&mut self, key: PortKey) {
        match (self.needed.contains_key(&key), self.lies.get(&key)) {
            (true, Some(Lies { sure: true, .. })) | (false, None) => {}
            (true, _) => drop(self.missing.insert(key)),
            (false, Some(_)) => drop(self.surplus.insert(key)),
        }
    }

    /// When a failed write is tried again (CLOCK_MONOTONIC, ns).
    pub(super) fn next_retry(&self) -> Option<u64> {
        self.later.values().min().copied()
    }

    /// These keys were read in the map, all of them where `whole`. What was read may be old by now, so it proves nothing: a key
    /// that is needed is written again. Returns how many differed from what was believed.
    pub(super) fn found(&mut self, keys: &[PortKey], whole: bool) -> usize {
        let found: BTreeSet<PortKey> = keys.iter().copied().collect();
        let mut differ = 0;
        let is_lost = |(key, lies): &(&PortKey, &Lies)| whole && lies.sure && !found.contains(*key);
        let lost = self.lies.iter().filter(is_lost).map(|(key, _)| *key);
        for key in lost.collect::<Vec<_>>() {
            differ += 1;
            if let Some(lies) = self.lies.get_mut(&key) {
                lies.sure = false;
            }
            self.list(key);
        }
        for key in found {
            if !self.lies.contains_key(&key) {
                differ += 1;
                let slot = self.owner(key);
                self.lies.insert(key, Lies { sure: false, slot });
                self.list(key);
            }
        }
        differ
    }

    /// The ports that need a key, and whose verdicts make it so. Costs in proportion to what is exempt: asked only where a write failed.
    pub(super) fn blame(&self, key: PortKey) -> Vec<Blame> {
        let mut blames = Vec::new();
        for (_, view) in &self.views {
            let index = view.index();
            let of_key =
                view.ports().iter().filter(|(port, _)| port.key() == key || port.address_key() == key);
            for (port, reason) in of_key {
                let owner = index.slot(port);
                if reason.why == Why::Untied {
                    blames.push(Blame { port: *port, owner, cut: owner.into_iter().collect() });
                }
                for target in index.with(port, *reason) {
                    let cut: BTreeSet<Slot> =
                        target.usable.iter().filter_map(|port| index.slot(port)).collect();
                    if cut.is_subset(&self.cut) {
                        blames.push(Blame { port: *port, owner, cut: cut.into_iter().collect() });
                    }
                }
            }
        }
        blames
    }

    /// The node that a key is needed for, or was last.
    fn owner(&self, key: PortKey) -> Option<Slot> {
        let needed = self.needed.get(&key).and_then(|need| need.slot);
        needed.or_else(|| self.lies.get(&key).and_then(|lies| lies.slot))
    }

    /// What is exempt under the latest view.
    pub(super) fn ports(&self) -> ExemptPorts {
        self.views.last().map(|(_, view)| view.ports().clone()).unwrap_or_default()
    }

    /// How many more ports of the latest view would be exempt, were what is observed enforced.
    pub(super) fn would(&self) -> usize {
        let would = self.would.as_ref().map_or(0, |(_, would)| would.ports().len());
        would.saturating_sub(self.views.last().map_or(0, |(_, view)| view.ports().len()))
    }

    /// Whether the node is cut, or about to be.
    pub(super) fn is_cut(&self, slot: Slot) -> bool {
        self.cut.contains(&slot)
    }

    /// Whether what it would cut is counted.
    pub(super) fn is_observed(&self, slot: Slot) -> bool {
        self.observed.contains(&slot)
    }

    /// The nodes that are cut or are about to be, by place.
    #[cfg(test)]
    pub(super) fn cut(&self) -> impl Iterator<Item = Slot> {
        self.cut.iter().copied()
    }

    /// The nodes of which is counted what would be cut, by place.
    #[cfg(test)]
    pub(super) fn observed(&self) -> impl Iterator<Item = Slot> {
        self.observed.iter().copied()
    }
}

/// All that is exempt, each port once.
fn ports_of(view: &Shortage) -> Vec<KeptPort> {
    let ports: BTreeSet<KeptPort> = view.ports().iter().map(|(port, _)| *port).collect();
    ports.into_iter().collect()
}
