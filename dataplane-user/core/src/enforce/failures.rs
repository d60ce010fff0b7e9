//! What becomes of a write that failed.

use std::{collections::BTreeMap, sync::Arc};

use nodefence_common::PortKey;

use super::{
    machine::Enforcer,
    now::{Now, SECOND},
    output::{Event, Output, Refusal},
    place::{Before, Blocked},
};
use crate::cluster::Backend;

impl Enforcer {
    /// Takes note that the last output of [`Enforcer::poll`] could not be carried out.
    pub fn failed(&mut self, output: Output, error: Arc<str>, now: Now) {
        let sent = self.sent.take();
        self.now = now;
        match output {
            Output::Node(index, _) => {
                if let Some((_, before)) = sent.filter(|(sent, _)| *sent == index) {
                    self.node_failed(index, before, error);
                }
            }
            Output::Exempt(key) | Output::Except(key) | Output::Unexempt(key) => self.key_failed(key, &error),
            Output::Tables(plan) => self.tables_written(plan.epoch, Err(error)),
            Output::Save(serial, _) => self.saved(serial, Err(error)),
            Output::Publish(_) | Output::Lease(_) | Output::Reply(..) | Output::Record(_) => {}
        }
        if self.bridged.is_none() {
            self.settle();
        }
        self.answer();
    }

    /// A node's entry that failed is tried again each second. Until it is written or has lapsed, the node counts as cut where either the old or the new entry cuts.
    fn node_failed(&mut self, index: u32, before: Before, error: Arc<str>) {
        let again = self.now.mono.saturating_add(SECOND);
        let Some(place) = self.places.get_mut(&index) else { return };
        let slot = place.slot();
        let news = place.error.as_ref() != Some(&error);
        place.failed(before, again, Arc::clone(&error));
        place.lapse(self.now.mono);
        let changed = place.slot() != slot;
        let name = place.owner.as_ref().map(|owner| owner.name.clone());
        let lapses = place.may_cut;
        if changed {
            self.release(slot);
        }
        self.later.insert((again, index));
        self.later.extend(lapses.map(|until| (until, index)));
        self.troubled.insert(index);
        self.publish = true;
        self.touch(index);
        let Some(name) = name else { return };
        if self.refuse(&name, &Refusal::NotWritten(Arc::clone(&error))) {
            // Nobody must take a node for cut that may not be cut: its verdict is taken back at once.
            if let Some(place) = self.places.get_mut(&index) {
                place.again = None;
            }
            self.touch(index);
        }
        self.not_taken_back(&name, &error);
        if news && self.bridged.is_none() {
            self.out.push_back(Output::Record(Event::Failed(name, error)));
        }
    }

    /// Nothing may be cut that must be exempt. Of the nodes whose verdicts together need the exemption, those are not cut whose verdict is not written yet;
    /// the others stay cut. Where all verdicts are written, the node of the port is released. A failed key that cuts a port of an exempt address holds up nothing:
    /// the port passes.
    fn key_failed(&mut self, key: PortKey, error: &Arc<str>) {
        let until = self.now.mono.saturating_add(SECOND);
        if !self.exempt.failed(key, until) {
            return;
        }
        let mut blocked: BTreeMap<u32, Backend> = BTreeMap::new();
        for blame in self.exempt.blame(key) {
            let is_new = |index: &u32| {
                let place = self.places.get(index);
                place.is_some_and(|place| place.wants_cut() && place.may_cut.is_none())
            };
            let mut new: Vec<u32> = blame.cut.iter().map(|slot| slot.index).filter(is_new).collect();
            if new.is_empty() {
                new.extend(blame.owner.map(|slot| slot.index));
            }
            blocked.extend(new.into_iter().map(|index| (index, blame.port.backend())));
        }
        for (index, port) in blocked {
            let Some(place) = self.places.get_mut(&index) else { continue };
            let news = place.blocked.as_ref().is_none_or(|blocked| blocked.why != *error);
            place.blocked = Some(Blocked { until, port, why: Arc::clone(error) });
            let name = place.owner.as_ref().map(|owner| owner.name.clone());
            self.later.insert((until, index));
            self.troubled.insert(index);
            self.publish = true;
            if let Some(name) = &name {
                self.rewant(name);
                if self.refuse(name, &Refusal::NotExempt { port, error: Arc::clone(error) }) {
                    if let Some(place) = self.places.get_mut(&index) {
                        place.blocked = None;
                    }
                    continue;
                }
            }
            if news {
                self.out.push_back(Output::Record(Event::NotExempt(name, port, Arc::clone(error))));
            }
        }
    }
}
