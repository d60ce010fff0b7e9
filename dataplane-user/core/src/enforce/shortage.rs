//! How much is left of each target of one view while some nodes are cut, and which ports are exempt because of that.

use std::sync::Arc;

use super::{
    index::{ExemptIndex, Reindexed, Target},
    ports::ExemptPorts,
};
use crate::plan::{ExemptPort, Slot};

/// What is left of the targets of a view. To cut or spare a node costs in proportion to its parts of targets.
#[derive(Clone, Debug)]
pub(super) struct Shortage {
    index: Arc<ExemptIndex>,
    /// How many ports are left, by the target's number.
    left: Vec<u32>,
    ports: ExemptPorts,
}

impl Shortage {
    /// The shortage while no node is cut.
    pub(super) fn new(index: Arc<ExemptIndex>) -> Self {
        Self { left: index.sizes().to_vec(), index, ports: ExemptPorts::default() }
    }

    /// The shortage of the view that follows on this one's, of which this changed. `cut`: whether a node is cut.
    pub(super) fn follow(
        &self,
        index: Arc<ExemptIndex>,
        changed: &Reindexed,
        cut: impl Fn(Slot) -> bool,
    ) -> Self {
        let mut left = self.left.clone();
        left.resize(index.sizes().len(), 0);
        let mut next = Self { left, index: Arc::clone(&index), ports: self.ports.clone() };
        for &service in &changed.services {
            for (number, target) in self.index.targets_of_service(service) {
                if self.left[number as usize] == 0 {
                    next.take_away(target);
                }
            }
            for (number, target) in index.targets_of_service(service) {
                let alive = target.usable().filter(|port| !index.slot(port).is_some_and(&cut)).count();
                next.left[number as usize] = alive as u32;
                if alive == 0 {
                    next.add(target);
                }
            }
        }
        for slot in changed.untied.iter().copied().filter(|slot| cut(*slot)) {
            for (port, reason) in self.index.untied_of(slot) {
                next.ports.remove(*port, *reason);
            }
            for (port, reason) in index.untied_of(slot) {
                next.ports.insert(*port, *reason);
            }
        }
        next
    }

    fn add(&mut self, target: &Target) -> Vec<ExemptPort> {
        let new = target.usable().filter(|port| self.ports.insert(*port, target.reason));
        new.collect()
    }

    fn take_away(&mut self, target: &Target) -> Vec<ExemptPort> {
        let gone = target.usable().filter(|port| self.ports.remove(*port, target.reason));
        gone.collect()
    }

    /// Which ports are exempt.
    pub(super) fn ports(&self) -> &ExemptPorts {
        &self.ports
    }

    /// The index of the view.
    pub(super) fn index(&self) -> &Arc<ExemptIndex> {
        &self.index
    }

    /// Cuts a node that was not cut. Returns the ports that are newly exempt.
    pub(super) fn cut(&mut self, slot: Slot) -> Vec<ExemptPort> {
        let mut new = Vec::new();
        let index = Arc::clone(&self.index);
        for (number, count, target) in index.targets_of(slot) {
            let left = &mut self.left[number as usize];
            *left = left.saturating_sub(count);
            if *left == 0 {
                new.extend(self.add(target));
            }
        }
        for &(port, reason) in index.untied_of(slot) {
            if self.ports.insert(port, reason) {
                new.push(port);
            }
        }
        new
    }

    /// Spares a node that was cut. Returns the ports that are not exempt any more.
    pub(super) fn spare(&mut self, slot: Slot) -> Vec<ExemptPort> {
        let mut gone = Vec::new();
        let index = Arc::clone(&self.index);
        for (number, count, target) in index.targets_of(slot) {
            let left = &mut self.left[number as usize];
            let was_exempt = *left == 0;
            *left += count;
            if was_exempt {
                gone.extend(self.take_away(target));
            }
        }
        for &(port, reason) in index.untied_of(slot) {
            if self.ports.remove(port, reason) {
                gone.push(port);
            }
        }
        gone
    }
}
