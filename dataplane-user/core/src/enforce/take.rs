//! Takes another view over: new owners of places, nodes that left, tables to write. And takes what a comparison read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nodefence_common::{NodeEntry, PortKey};

use super::{
    machine::Enforcer,
    now::{Epoch, Now, SECOND},
    output::{Event, Output},
    place::{Place, PlaceOwner},
    view::{Delta, NewView},
};
use crate::cluster::NodeName;

impl Enforcer {
    /// Takes a view over, or has it wait until the tables of the view before are written.
    pub(super) fn view(&mut self, view: Arc<NewView>) {
        if let Some(view) = self.views.offer(view) {
            self.take(view);
        }
    }

    /// The source confirmed its last view at this time. The age follows only where that view is in the maps, since it is the age of what lies there; a view
    /// that is not there yet is of about that time itself. A view that was taken, and so published, is confirmed to readers of the snapshot also while the maps
    /// cannot be written.
    pub(super) fn confirmed(&mut self, at: Now) {
        if self.views.is_written() {
            self.age.confirm(at, self.now);
        }
        if self.views.is_taken() {
            self.confirmed = self.confirmed.max(at.mono);
        }
    }

    fn take(&mut self, view: Arc<NewView>) {
        let (before, never_written) = self.views.take(Arc::clone(&view));
        let compared;
        let delta = match &before {
            Some(before) if view.delta.base == Some(before.epoch) => &view.delta,
            _ => {
                compared = compare(before.as_deref(), &view);
                &compared
            }
        };
        for (name, slot) in &delta.left {
            self.leave(name, slot.index, slot.generation);
        }
        for name in &delta.added {
            self.own(name, &view);
        }
        let since = delta.base.zip(delta.exempt.as_ref());
        self.exempt.open(&view, since);
        if let Some(before) = before.filter(|_| never_written) {
            self.exempt.forget(before.epoch);
        }
        self.claims.open(&view);
        self.grown.extend(delta.grown.iter().cloned());
        self.challenge_grown();
        if self.bridged.take().is_some() {
            // From now on all verdicts are renewed, and verdicts without a claim are taken back.
            self.bridging.clear();
            self.next_renewal = self.now.mono;
            for index in self.places.keys().copied().collect::<Vec<_>>() {
                if let Some(place) = self.places.get_mut(&index) {
                    place.again = None;
                    if place.owner.is_none() {
                        self.left.insert(index);
                    }
                }
                self.touch(index);
            }
        }
        self.dangers_due = true;
        self.publish = true;
    }

    /// Takes its place from a node.
    fn leave(&mut self, name: &str, index: u32, generation: u32) {
        let Some(place) = self.places.get_mut(&index) else { return };
        let its = |owner: &PlaceOwner| owner.slot.generation == generation && owner.name == *name;
        if !place.owner.as_ref().is_some_and(its) {
            return;
        }
        place.want(None, self.now.mono);
        place.owner = None;
        place.blocked = None;
        self.left.insert(index);
        self.fresh.remove(&index);
        self.unwritten.remove(&index);
        self.touch(index);
    }

    /// Makes a node the owner of its place.
    fn own(&mut self, name: &NodeName, view: &NewView) {
        let Some(member) = view.members.get(name) else { return };
        let index = member.slot.index;
        let now = self.now.mono;
        let place = self.places.entry(index).or_insert_with(|| Place::unused(index, now));
        place.want(None, now);
        place.owner = Some(PlaceOwner { name: name.clone(), slot: member.slot, since: view.epoch });
        place.blocked = None;
        place.vacant = false;
        self.left.remove(&index);
        self.fresh.insert(index);
        if place.is_unwritten() {
            self.unwritten.insert(index);
        } else {
            self.unwritten.remove(&index);
        }
        self.touch(index);
    }

    /// Has the clients of nodes challenged anew that got more backends: earlier rounds left these out.
    fn challenge_grown(&mut self) {
        let now = self.now.mono;
        for name in &self.grown {
            let Some(slot) = self.views.slot(name) else { continue };
            if let Some(place) = self.places.get_mut(&slot.index).filter(|place| place.wants_cut()) {
                place.challenge_since = now;
                self.publish = true;
                self.retell.insert(slot.index);
            }
        }
    }

    /// Takes the result of writing the tables.
    pub(super) fn tables_written(&mut self, epoch: Epoch, result: Result<(), Arc<str>>) {
        let ours = match result {
            Ok(()) => self.views.succeeded(epoch),
            Err(error) => {
                let news = self.views.error.as_ref() != Some(&error);
                let again = self.now.mono.saturating_add(SECOND);
                let ours = self.views.failed(epoch, Arc::clone(&error), again);
                if ours && news {
                    self.out.push_back(Output::Record(Event::TablesFailed(error)));
                }
                ours
            }
        };
        if !ours {
            return;
        }
        self.publish = true;
        if self.views.written() == Some(epoch) && self.views.error.is_none() {
            self.exempt.written(epoch);
            if let Some(view) = self.views.latest() {
                self.age.confirm(view.read, self.now);
            }
            self.challenge_grown();
            self.grown.clear();
            self.vacate();
            // Verdicts that waited for these tables.
            for index in std::mem::take(&mut self.fresh) {
                let owner = self.places.get(&index).and_then(|place| place.owner.as_ref());
                if let Some(name) = owner.map(|owner| owner.name.clone()) {
                    self.rewant(&name);
                }
            }
        }
        if let Some(view) = self.views.next() {
            self.take(view);
        }
    }

    /// Has places without an owner written as unused.
    fn vacate(&mut self) {
        for index in std::mem::take(&mut self.left) {
            if let Some(place) = self.places.get_mut(&index).filter(|place| place.owner.is_none()) {
                place.vacant = true;
            }
            self.touch(index);
        }
    }

    /// Compares what was read in the maps with what should lie there, and has the differences mended.
    pub(super) fn found(&mut self, nodes: Vec<(u32, NodeEntry)>, exempt: &[(PortKey, u32)], whole: bool) {
        let now = self.now.mono;
        let mut differ = 0;
        let read: BTreeSet<u32> = nodes.iter().map(|(index, _)| *index).collect();
        let is_missing =
            |(index, place): &(&u32, &Place)| whole && !place.is_empty() && !read.contains(*index);
        let missing = self.places.iter().filter(is_missing).map(|(index, _)| *index);
        for index in missing.collect::<Vec<_>>() {
            differ += 1;
            if let Some(place) = self.places.get_mut(&index) {
                place.clean = false;
            }
            self.touch(index);
        }
        for (index, entry) in nodes {
            let place = self.places.entry(index).or_insert_with(|| Place::found(index, entry, now));
            if place.entry != entry {
                // The entry may have been renewed since it was read.
                let renewed = NodeEntry { until: place.entry.until, ..entry } == place.entry;
                differ += usize::from(!renewed);
                place.differs(&entry);
            }
            if place.owner.is_none() && !place.vacant {
                self.left.insert(index);
            }
            self.touch(index);
        }
        let ports = self.exempt.found(exempt, whole);
        // Differences that an earlier agent left are no fault.
        if self.views.written().is_some() && (differ > 0 || ports > 0) {
            self.out.push_back(Output::Record(Event::Mended(differ, ports)));
        }
    }
}

/// What changed, where the builder did not say so.
fn compare(before: Option<&NewView>, view: &NewView) -> Delta {
    match before {
        Some(before) => Delta::between(before, &view.view, &view.members),
        // No node was known before: the clients of each node that is cut are challenged.
        None => Delta {
            grown: view.members.keys().cloned().collect(),
            ..Delta::of_members(&BTreeMap::new(), &view.members)
        },
    }
}
