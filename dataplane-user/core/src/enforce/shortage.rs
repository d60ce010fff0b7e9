//! Of one view: how much is left of each target while some nodes are cut, and what is exempt therefore.

use std::sync::Arc;

use super::{index::ExemptIndex, ports::ExemptPorts};
use crate::plan::{KeptPort, Slot};

/// What is left of the targets of a view. A node costs what it has of them.
#[derive(Clone, Debug)]
pub(super) struct Shortage {
    index: Arc<ExemptIndex>,
    /// By the target's number.
    left: Box<[u32]>,
    ports: ExemptPorts,
}

impl Shortage {
    /// While nobody is cut.
    pub(super) fn new(index: Arc<ExemptIndex>) -> Self {
        Self { left: index.sizes().into(), index, ports: ExemptPorts::default() }
    }

    /// Which ports are exempt.
    pub(super) fn ports(&self) -> &ExemptPorts {
        &self.ports
    }

    /// Of which view.
    pub(super) fn index(&self) -> &Arc<ExemptIndex> {
        &self.index
    }

    /// A node is cut from now on that was not. Gives the ports that are exempt now and were not.
    pub(super) fn cut(&mut self, slot: Slot) -> Vec<KeptPort> {
        let mut new = Vec::new();
        for &(number, count) in self.index.targets_of(slot) {
            let left = &mut self.left[number as usize];
            *left = left.saturating_sub(count);
            if *left > 0 {
                continue;
            }
            let Some(target) = self.index.target(number) else { continue };
            for port in &target.usable {
                if self.ports.insert(*port, target.reason) {
                    new.push(*port);
                }
            }
        }
        for &(port, reason) in self.index.untied_of(slot) {
            if self.ports.insert(port, reason) {
                new.push(port);
            }
        }
        new
    }

    /// A node is not cut any more that was. Gives the ports that are not exempt any more.
    pub(super) fn spare(&mut self, slot: Slot) -> Vec<KeptPort> {
        let mut gone = Vec::new();
        for &(number, count) in self.index.targets_of(slot) {
            let left = &mut self.left[number as usize];
            let was_exempt = *left == 0;
            *left += count;
            if !was_exempt {
                continue;
            }
            let Some(target) = self.index.target(number) else { continue };
            for port in &target.usable {
                if self.ports.remove(*port, target.reason) {
                    gone.push(*port);
                }
            }
        }
        for &(port, reason) in self.index.untied_of(slot) {
            if self.ports.remove(port, reason) {
                gone.push(port);
            }
        }
        gone
    }
}
