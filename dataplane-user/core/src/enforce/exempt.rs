//! Exemptions: which keys must lie in the map so that no cut leaves a Service with nothing, and which lie there.
//!
//! Exemptions are worked out for every view whose backends the map may hold: the one that was written last, and those that were
//! handed out since.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nodefence_common::{Addr, PortKey};

use super::{
    index::Reindexed,
    keys::{Keys, Says},
    now::Epoch,
    output::Output,
    ports::ExemptPorts,
    shortage::Shortage,
    view::NewView,
};
use crate::plan::{At, ExemptPort, NodeTables, Slot, Why};

/// A port for which a key is needed, and the nodes whose verdicts together make it so.
#[derive(Clone, Debug)]
pub(super) struct Blame {
    pub(super) port: ExemptPort,
    /// The node of the port.
    pub(super) owner: Option<Slot>,
    pub(super) cut: Vec<Slot>,
}

/// A view whose backends the map may hold.
#[derive(Debug)]
struct Open {
    epoch: Epoch,
    shortage: Shortage,
    /// The view's tables: they say which addresses are backends as a whole.
    tables: Arc<NodeTables>,
}

/// Exemptions: needed and written.
#[derive(Debug, Default)]
pub(super) struct Exempt {
    /// The oldest first.
    views: Vec<Open>,
    /// The shortage of the latest view as it would be if observed nodes were cut too.
    would: Option<(Epoch, Shortage)>,
    /// Nodes that are cut or are about to be.
    cut: BTreeSet<Slot>,
    /// Nodes that are only observed.
    observed: BTreeSet<Slot>,
    keys: Keys,
}

impl Exempt {
    /// Sets whether a node is cut or about to be.
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
        for view in &mut self.views {
            let changed = if cut { view.shortage.cut(slot) } else { view.shortage.spare(slot) };
            for (at, changed) in by_address(&changed) {
                let now = view.shortage.ports().at(at);
                let before = if cut { &now - &changed } else { &now | &changed };
                view.note(&mut self.keys, at, &before, &now);
            }
        }
    }

    /// Sets whether a node is only observed.
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

    /// Takes note that backends of this view may lie in the map from now on. `since`: what changed since another view, where that is known.
    pub(super) fn open(&mut self, view: &NewView, since: Option<(Epoch, &Reindexed)>) {
        let index = &view.exempt;
        let is_cut = |slot| self.cut.contains(&slot);
        let would_be = |slot| self.cut.contains(&slot) || self.observed.contains(&slot);
        let base = since.and_then(|(base, changed)| {
            let before = self.views.iter().find(|view| view.epoch == base)?;
            let (_, would) = self.would.as_ref().filter(|(of, _)| *of == base)?;
            let shortage = before.shortage.follow(Arc::clone(index), changed, is_cut);
            Some((shortage, would.follow(Arc::clone(index), changed, would_be)))
        });
        let (shortage, would) = base.unwrap_or_else(|| {
            let mut shortage = Shortage::new(Arc::clone(index));
            let mut would = shortage.clone();
            for slot in &self.cut {
                shortage.cut(*slot);
            }
            for slot in self.cut.union(&self.observed) {
                would.cut(*slot);
            }
            (shortage, would)
        });
        let open = Open { epoch: view.epoch, shortage, tables: Arc::clone(&view.tables) };
        for (at, ports) in open.addresses() {
            open.note(&mut self.keys, at, &BTreeSet::new(), &ports);
        }
        self.views.push(open);
        self.would = Some((view.epoch, would));
    }

    /// Takes note that only backends of this view lie in the map from now on.
    pub(super) fn written(&mut self, epoch: Epoch) {
        self.keys.settle();
        for gone in self.views.extract_if(.., |view| view.epoch != epoch) {
            gone.release(&mut self.keys);
        }
    }

    /// Takes note that no backend of this view came into the map.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        for gone in self.views.extract_if(.., |view| view.epoch == epoch) {
            gone.release(&mut self.keys);
        }
    }

    /// The next key to write or remove before verdicts are written.
    pub(super) fn next_before(&mut self) -> Option<Output> {
        self.keys.next_before()
    }

    /// Whether all that must pass is exempt in the map.
    pub(super) fn whole(&self) -> bool {
        self.keys.whole()
    }

    /// The next key to write or remove once verdicts are written, and the node of which more is cut then.
    pub(super) fn next_after(&mut self) -> Option<(Output, Option<Slot>)> {
        let (output, slot) = self.keys.next_after()?;
        Some((output, slot.filter(|slot| self.cut.contains(slot))))
    }

    /// Takes note that a key could not be written or removed: whether it lies in the map is not known. Returns whether something that must pass therefore may not.
    pub(super) fn failed(&mut self, key: PortKey, again: u64) -> bool {
        self.keys.failed(key, again);
        self.keys.must_pass(&key)
    }

    /// Has failed writes tried again that are due.
    pub(super) fn retry(&mut self, now: u64) {
        self.keys.retry(now);
    }

    /// When a failed write is tried again (CLOCK_MONOTONIC, ns).
    pub(super) fn next_retry(&self) -> Option<u64> {
        self.keys.next_retry()
    }

    /// Takes these keys as read in the map with their values; where `whole`, they are all keys of the map. What was read may be old by now and proves
    /// nothing, so a needed key that differs is written again. Returns how many keys differed from what was believed.
    pub(super) fn found(&mut self, keys: &[(PortKey, u32)], whole: bool) -> usize {
        self.keys.found(keys, whole)
    }

    /// The ports that need a key, and whose verdicts make it so. Costs in proportion to all exemptions: called only where a write failed.
    pub(super) fn blame(&self, key: PortKey) -> Vec<Blame> {
        let mut blames = Vec::new();
        for view in &self.views {
            let index = view.shortage.index();
            let its_own = self.keys.passes(&key);
            // Every exempt port of an address needs the address' own key, and needs that no key cuts a port which nobody names.
            let of_key = view.shortage.ports().iter().filter(|(port, _)| match its_own {
                true => port.key() == key,
                false => Addr::from(port.address) == key.addr,
            });
            for (port, reason) in of_key {
                let owner = index.slot(port);
                if matches!(reason.why, Why::Untied | Why::LeftOut) {
                    blames.push(Blame { port: *port, owner, cut: owner.into_iter().collect() });
                }
                for target in index.with(port, *reason) {
                    let cut: BTreeSet<Slot> = target.usable().filter_map(|port| index.slot(&port)).collect();
                    if cut.is_subset(&self.cut) {
                        blames.push(Blame { port: *port, owner, cut: cut.into_iter().collect() });
                    }
                }
            }
        }
        blames
    }

    /// The ports that are exempt under the latest view.
    pub(super) fn ports(&self) -> ExemptPorts {
        self.views.last().map(|view| view.shortage.ports().clone()).unwrap_or_default()
    }

    /// How many more ports of the latest view would be exempt if observed nodes were cut too.
    pub(super) fn would(&self) -> usize {
        let would = self.would.as_ref().map_or(0, |(_, would)| would.ports().len());
        would.saturating_sub(self.views.last().map_or(0, |view| view.shortage.ports().len()))
    }

    /// Whether the node is cut, or about to be.
    pub(super) fn is_cut(&self, slot: Slot) -> bool {
        self.cut.contains(&slot)
    }

    /// Whether the node is only observed: packets that would be cut are counted.
    pub(super) fn is_observed(&self, slot: Slot) -> bool {
        self.observed.contains(&slot)
    }

    /// The nodes that are cut or are about to be, by place.
    #[cfg(test)]
    pub(super) fn cut(&self) -> impl Iterator<Item = Slot> {
        self.cut.iter().copied()
    }

    /// The nodes that are only observed, by place.
    #[cfg(test)]
    pub(super) fn observed(&self) -> impl Iterator<Item = Slot> {
        self.observed.iter().copied()
    }
}

impl Open {
    /// Updates the keys of an address of which `before` was exempt and `now` is.
    fn note(&self, keys: &mut Keys, at: At, before: &BTreeSet<ExemptPort>, now: &BTreeSet<ExemptPort>) {
        let index = self.shortage.index();
        let Some(slot) = before.union(now).next().map(|port| index.slot(port)) else { return };
        let (_, address) = at;
        let addr = Addr::from(address);
        if slot.is_some_and(|slot| self.tables.is_whole(&addr, slot.index)) {
            let named = index.named(at);
            let cut = |exempt: &BTreeSet<ExemptPort>| match exempt.is_empty() {
                true => BTreeSet::new(),
                false => &named - exempt,
            };
            let was_cut = cut(before);
            let is_cut = cut(now);
            is_cut.difference(&was_cut).for_each(|port| keys.need(port.key(), Says::Cut, slot));
            was_cut.difference(&is_cut).for_each(|port| keys.unneed(port.key(), Says::Cut));
            let address = PortKey::exempt_address(addr);
            match (before.is_empty(), now.is_empty()) {
                (true, false) => keys.need(address, Says::Pass, slot),
                (false, true) => keys.unneed(address, Says::Pass),
                _ => {}
            }
            keys.address_changed(addr);
        }
        now.difference(before).for_each(|port| keys.need(port.key(), Says::Pass, slot));
        before.difference(now).for_each(|port| keys.unneed(port.key(), Says::Pass));
    }

    /// Gives up the keys of this view: none of its backends lies in the map any more.
    fn release(&self, keys: &mut Keys) {
        for (at, ports) in self.addresses() {
            self.note(keys, at, &ports, &BTreeSet::new());
        }
    }

    /// All exempt ports, by address.
    fn addresses(&self) -> BTreeMap<At, BTreeSet<ExemptPort>> {
        let ports: Vec<ExemptPort> = self.shortage.ports().iter().map(|(port, _)| *port).collect();
        by_address(&ports)
    }
}

fn by_address(ports: &[ExemptPort]) -> BTreeMap<At, BTreeSet<ExemptPort>> {
    let mut all: BTreeMap<At, BTreeSet<ExemptPort>> = BTreeMap::new();
    for port in ports {
        all.entry(port.at()).or_default().insert(*port);
    }
    all
}
