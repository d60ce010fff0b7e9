//! Messages to the thread `drain`, and the state that it shows to others.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{cluster::NodeName, ipvs::ServiceKey, ledger::Pair, report::IpvsRow};

/// At most so many services are urgent at a time. All others are looked at within a second.
const URGENT: usize = 64;

/// The messages to the thread `drain`, and the state that it shows to others.
#[derive(Default)]
pub(super) struct Bell {
    board: Mutex<Board>,
    /// This lock is held only while the value is set: `verdicts` rings too.
    rung: Mutex<bool>,
    ringing: Condvar,
}

#[derive(Default)]
pub(super) struct Board {
    ending: Option<Ending>,
    /// When (CLOCK_MONOTONIC, ns) the latest ended round of challenges began, by node.
    pub(super) challenged: BTreeMap<NodeName, u64>,
    /// Services that packets wait for, until they have been looked at.
    pub(super) urgent: BTreeSet<ServiceKey>,
    pub(super) row: IpvsRow,
    pub(super) progress: Progress,
}

/// How far the drain is. For whoever waits for it.
#[derive(Clone, Default)]
pub(super) struct Progress {
    /// Pairs whose connections find another destination when they are opened again.
    pub(super) balanced: Arc<HashSet<Pair>>,
    /// Whether the kernel drops connections to deleted destinations.
    pub(super) flushes: bool,
}

/// What happens to drained destinations when the agent ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// They are restored.
    Restore,
    /// Another agent takes them over.
    Leave,
}

impl Bell {
    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rung(&self) -> MutexGuard<'_, bool> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flags or backends may have changed.
    pub(super) fn ring(&self) {
        *self.rung() = true;
        self.ringing.notify_all();
    }

    /// A packet waits until this service is drained. Rings once for each service until the drain has looked at it.
    pub(super) fn urgent(&self, service: ServiceKey) {
        let mut board = self.board();
        if board.urgent.len() < URGENT && board.urgent.insert(service) {
            drop(board);
            self.ring();
        }
    }

    /// A round of challenges that began at `begun` is over.
    pub(super) fn challenged(&self, node: &NodeName, begun: u64) {
        let mut board = self.board();
        let last = board.challenged.entry(node.clone()).or_default();
        // Two rounds may run at a time, and the older one may end last.
        *last = begun.max(*last);
        drop(board);
        self.ring();
    }

    /// The nodes whose clients were challenged since the node was cut (CLOCK_MONOTONIC, ns). A round that began before belongs to an
    /// earlier flag. Rounds of nodes that are not in `cut` are forgotten.
    pub(super) fn challenged_since(&self, cut: &BTreeMap<NodeName, u64>) -> BTreeSet<NodeName> {
        let mut board = self.board();
        board.challenged.retain(|name, _| cut.contains_key(name));
        let over = board.challenged.iter().filter(|(name, begun)| cut[*name] <= **begun);
        over.map(|(name, _)| name.clone()).collect()
    }

    /// For `status`.
    pub(super) fn row(&self) -> IpvsRow {
        self.board().row.clone()
    }

    /// How far the drain is.
    pub(super) fn progress(&self) -> Progress {
        self.board().progress.clone()
    }

    pub(super) fn end(&self, ending: Ending) {
        self.board().ending = Some(ending);
        self.ring();
    }

    /// Waits until somebody rings, for `longest` at most. Returns how the agent ends, once it does.
    pub(super) fn wait(&self, longest: Duration) -> Option<Ending> {
        let waited = self.ringing.wait_timeout_while(self.rung(), longest, |rung| !*rung);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *rung = false;
        drop(rung);
        self.board().ending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_urgent_rings_once() {
        let bell = Bell::default();
        let key = |mark| ServiceKey::Mark { family: crate::ipvs::Family::V4, mark };
        let rung = |bell: &Bell| std::mem::take(&mut *bell.rung());
        bell.urgent(key(1));
        assert!(rung(&bell));
        bell.urgent(key(1));
        assert!(!rung(&bell), "it is told already");
        for mark in 2..200 {
            bell.urgent(key(mark));
        }
        assert_eq!(bell.board().urgent.len(), URGENT);
        bell.board().urgent.clear();
        bell.urgent(key(1));
        assert!(rung(&bell), "looked at, and waited for again");
    }

    #[test]
    fn a_round_counts_for_the_flag_that_it_began_under() {
        let bell = Bell::default();
        let node = NodeName::from("b");
        let challenged = |since: u64| bell.challenged_since(&BTreeMap::from([(node.clone(), since)])).len();
        assert_eq!(challenged(10), 0);
        // However late the thread looks: the time when the node was cut counts.
        bell.challenged(&node, 10);
        assert_eq!((challenged(10), challenged(11)), (1, 0));
        bell.challenged(&node, 12);
        bell.challenged(&node, 9);
        assert_eq!(challenged(11), 1, "an older one that ended later changes nothing");
        bell.challenged_since(&BTreeMap::new());
        assert_eq!(challenged(11), 0, "forgotten with its flag");
    }
}
