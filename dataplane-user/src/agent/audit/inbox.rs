//! Requests to the audit's thread. Nobody waits for room in the inbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::Duration,
};

use thiserror::Error;
use tokio::sync::{oneshot, watch};

use crate::{
    plan::audit::Kind,
    report::{AuditReport, RepairReport},
};

/// Requests that wait at most: as many as there are connections.
const REQUESTS: usize = 32;

/// Too many requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{REQUESTS} requests wait already; nothing was looked at, try again")]
pub(in super::super) struct Full;

/// A request to the audit.
pub(super) enum AuditRequest {
    /// A report of what differs, by readings that begin from now on.
    Report(oneshot::Sender<AuditReport>),
    /// Mending faults, or a report of what would be mended.
    Repair { kinds: BTreeSet<Kind>, dry_run: bool, waits: oneshot::Sender<RepairReport> },
}

/// How many faults of each kind the audit last found.
pub(in super::super) type Faults = watch::Receiver<BTreeMap<Kind, usize>>;

/// The end by which requests reach the audit.
#[derive(Clone)]
pub(in super::super) struct Inbox {
    asks: SyncSender<AuditRequest>,
    faults: Faults,
}

impl Inbox {
    /// The inbox, and the end that the audit's thread reads.
    pub(super) fn new(faults: Faults) -> (Self, Receiver<AuditRequest>) {
        let (asks, asked) = sync_channel(REQUESTS);
        (Self { asks, faults }, asked)
    }

    /// How many faults of each kind the audit last found. Starts no reading.
    pub(in super::super) fn faults(&self) -> BTreeMap<Kind, usize> {
        self.faults.borrow().clone()
    }

    /// Asks for what differs, by readings that begin from now on.
    ///
    /// # Errors
    /// Where too many ask.
    pub(in super::super) fn report(&self) -> Result<oneshot::Receiver<AuditReport>, Full> {
        self.ask(AuditRequest::Report)
    }

    /// Asks the audit to mend the faults of these kinds, or to tell what it would do.
    ///
    /// # Errors
    /// Where too many ask.
    pub(in super::super) fn repair(
        &self,
        kinds: BTreeSet<Kind>,
        dry_run: bool,
    ) -> Result<oneshot::Receiver<RepairReport>, Full> {
        self.ask(|waits| AuditRequest::Repair { kinds, dry_run, waits })
    }

    fn ask<T>(
        &self,
        asked: impl FnOnce(oneshot::Sender<T>) -> AuditRequest,
    ) -> Result<oneshot::Receiver<T>, Full> {
        let (waits, answer) = oneshot::channel();
        self.asks.try_send(asked(waits)).map_err(|_full| Full)?;
        Ok(answer)
    }
}

/// Takes all requests as soon as there is one, or none after `longest`.
pub(super) fn take(asked: &Receiver<AuditRequest>, longest: Duration) -> Vec<AuditRequest> {
    let first = asked.recv_timeout(longest).ok();
    first.into_iter().chain(asked.try_iter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_taken_at_once_and_bounded() {
        let (inbox, asked) = Inbox::new(watch::channel(BTreeMap::new()).1);
        let _report = inbox.report().unwrap();
        let waiting: Vec<_> =
            (1..REQUESTS).map(|n| inbox.repair(BTreeSet::new(), n % 2 == 0).unwrap()).collect();
        assert_eq!(inbox.report().err(), Some(Full));
        assert_eq!(inbox.repair(BTreeSet::new(), false).err(), Some(Full));
        let all = take(&asked, Duration::ZERO);
        assert_eq!(all.len(), 1 + waiting.len());
        assert!(matches!(all[0], AuditRequest::Report(_)));
        for (n, repair) in (1..).zip(&all[1..]) {
            assert!(
                matches!(repair, AuditRequest::Repair { dry_run, .. } if *dry_run == (n % 2 == 0)),
                "in their order"
            );
        }
        assert!(take(&asked, Duration::ZERO).is_empty() && inbox.report().is_ok(), "there is room again");
    }
}
