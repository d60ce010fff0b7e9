//! What the thread that drains flagged nodes from IPVS is told, and what it tells.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{cluster::NodeName, ipvs::ServiceKey, ledger::Pair, report::IpvsRow};

/// At most so many services are urgent at a time. All others are looked at within a second.
const URGENT: usize = 64;

/// What the thread that drains is told, and what it tells.
#[derive(Default)]
pub(super) struct Bell {
    board: Mutex<Board>,
    /// Held only while it is set: the owner of verdicts rings, too.
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

/// How far the drain is, for whoever waits for it.
#[derive(Clone, Default)]
pub(super) struct Progress {
    /// Pairs whose connections find another destination when they are opened again.
    pub(super) balanced: Arc<HashSet<Pair>>,
    /// Whether the kernel drops connections to deleted destinations.
    pub(super) flushes: bool,
}

/// What becomes of what is drained when the agent ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is restored.
    Restore,
    /// Another agent takes it over.
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

    /// A packet waits until this service is drained. Rings once for each until it has been looked at.
    pub(super) fn urgent(&self, service: ServiceKey) {
        let mut board = self.board();
        if board.urgent.len() < URGENT && board.urgent.insert(service) {
            drop(board);
            self.ring();
        }
    }

    /// A round of challenges is over that began at `begun`.
    pub(super) fn challenged(&self, node: &NodeName, begun: u64) {
        let mut board = self.board();
        let last = board.challenged.entry(node.clone()).or_default();
        // Two rounds may run at a time, and the older one may end last.
        *last = begun.max(*last);
        drop(board);
        self.ring();
    }

    /// The nodes whose clients were challenged since they were cut (CLOCK_MONOTONIC, ns). A round that began before belongs to an earlier
    /// flag. What is known of other nodes is forgotten.
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

    /// How far it is.
    pub(super) fn progress(&self) -> Progress {
        self.board().progress.clone()
    }

    pub(super) fn end(&self, ending: Ending) {
        self.board().ending = Some(ending);
        self.ring();
    }

    /// Waits until somebody rings, at most so long.
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
