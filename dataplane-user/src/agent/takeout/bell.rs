use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{ledger::Pair, report::IpvsRow};

/// What the thread is told, and what it tells.
#[derive(Default)]
pub(in crate::agent) struct Bell {
    board: Mutex<Board>,
    rung: Condvar,
}

#[derive(Default)]
pub(super) struct Board {
    rung: bool,
    ending: Option<Ending>,
    /// When (CLOCK_MONOTONIC, ns) the last round of asking that has ended began, by node.
    pub(super) asked: BTreeMap<String, u64>,
    pub(super) row: IpvsRow,
    pub(super) progress: Progress,
}

/// How far it is, for whoever waits for that.
#[derive(Clone, Default)]
pub(in crate::agent) struct Progress {
    /// Pairs whose connections find another destination when they are begun anew.
    pub(in crate::agent) balanced: Arc<HashSet<Pair>>,
    /// Whether the kernel lets go of connections to what is deleted.
    pub(in crate::agent) flushes: bool,
}

/// What becomes of what is taken out when the agent ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is put back.
    Restore,
    /// Another agent takes it over.
    Leave,
}

impl Bell {
    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flags or backends may have changed.
    pub(in crate::agent) fn ring(&self) {
        self.board().rung = true;
        self.rung.notify_all();
    }

    /// A round of asking is over that began at `begun`.
    pub(in crate::agent) fn asked(&self, node: &str, begun: u64) {
        self.board().asked.insert(node.to_owned(), begun);
        self.ring();
    }

    /// For `status`.
    pub(in crate::agent) fn row(&self) -> IpvsRow {
        self.board().row.clone()
    }

    /// How far it is.
    pub(in crate::agent) fn progress(&self) -> Progress {
        self.board().progress.clone()
    }

    pub(super) fn end(&self, ending: Ending) {
        self.board().ending = Some(ending);
        self.ring();
    }

    /// Waits until somebody rings, at most so long.
    pub(super) fn wait(&self, longest: Duration) -> Option<Ending> {
        let board = self.board();
        let waited = self.rung.wait_timeout_while(board, longest, |board| !board.rung);
        let (mut board, _) = waited.unwrap_or_else(PoisonError::into_inner);
        board.rung = false;
        board.ending
    }
}
