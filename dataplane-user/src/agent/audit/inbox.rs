//! What the thread that watches is asked. Nobody waits for room in it.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use thiserror::Error;
use tokio::sync::oneshot;

use super::super::slot::Slot;
use crate::{
    plan::audit::Kind,
    report::{AuditReport, RepairReport},
};

/// Requests of each sort that wait at most: as many as there are connections.
const REQUESTS: usize = 32;

/// Too many ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{REQUESTS} requests wait already; nothing was looked at, try again")]
pub(in super::super) struct Full;

/// One thing that it is asked.
pub(super) enum Asked {
    /// All who wait for a report get the same one: its readings begin after each of them asked.
    Reports(Vec<oneshot::Sender<AuditReport>>),
    /// Mends, or tells what it would mend.
    Repair { kinds: BTreeSet<Kind>, dry_run: bool, waits: oneshot::Sender<RepairReport> },
}

#[derive(Default)]
struct Work {
    reports: Vec<oneshot::Sender<AuditReport>>,
    repairs: VecDeque<(BTreeSet<Kind>, bool, oneshot::Sender<RepairReport>)>,
}

/// What it has not come to yet.
#[derive(Default)]
pub(in super::super) struct Inbox(Slot<Work>);

impl Inbox {
    /// Asks for what differs, by readings that begin from now on.
    ///
    /// # Errors
    /// Where too many ask.
    pub(in super::super) fn report(&self) -> Result<oneshot::Receiver<AuditReport>, Full> {
        let (waits, report) = oneshot::channel();
        let mut asked = Err(Full);
        self.0.post(|work| {
            if work.reports.len() < REQUESTS {
                work.reports.push(waits);
                asked = Ok(report);
            }
        });
        asked
    }

    /// Asks it to mend the faults of these kinds, or to tell what it would do.
    ///
    /// # Errors
    /// Where too many ask.
    pub(in super::super) fn repair(
        &self,
        kinds: BTreeSet<Kind>,
        dry_run: bool,
    ) -> Result<oneshot::Receiver<RepairReport>, Full> {
        let (waits, report) = oneshot::channel();
        let mut asked = Err(Full);
        self.0.post(|work| {
            if work.repairs.len() < REQUESTS {
                work.repairs.push_back((kinds, dry_run, waits));
                asked = Ok(report);
            }
        });
        asked
    }

    /// For its thread alone: the next thing that it is asked, or nothing after so long.
    pub(super) fn take(&self, longest: Duration) -> Option<Asked> {
        let is_something = |work: &Work| !work.reports.is_empty() || !work.repairs.is_empty();
        self.0.take_some(longest, is_something, |work| {
            if let Some((kinds, dry_run, waits)) = work.repairs.pop_front() {
                return Some(Asked::Repair { kinds, dry_run, waits });
            }
            let reports = std::mem::take(&mut work.reports);
            (!reports.is_empty()).then_some(Asked::Reports(reports))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(inbox: &Inbox) -> Option<Asked> {
        inbox.take(Duration::ZERO)
    }

    #[test]
    fn those_who_wait_for_a_report_get_the_same_one() {
        let inbox = Inbox::default();
        let waiting: Vec<_> = (0..REQUESTS).map(|_| inbox.report().unwrap()).collect();
        assert_eq!(inbox.report().err(), Some(Full));
        let Some(Asked::Reports(reports)) = take(&inbox) else { panic!("nobody asked") };
        assert_eq!(reports.len(), waiting.len());
        assert!(take(&inbox).is_none() && inbox.report().is_ok(), "there is room again");
    }

    #[test]
    fn repairs_come_one_by_one_and_are_bounded() {
        let inbox = Inbox::default();
        let _report = inbox.report().unwrap();
        let waiting: Vec<_> =
            (0..REQUESTS).map(|n| inbox.repair(BTreeSet::new(), n % 2 == 0).unwrap()).collect();
        assert_eq!(inbox.repair(BTreeSet::new(), false).err(), Some(Full));
        for n in 0..waiting.len() {
            match take(&inbox) {
                Some(Asked::Repair { dry_run, .. }) => assert_eq!(dry_run, n % 2 == 0, "in their order"),
                _ => panic!("no repair"),
            }
        }
        assert!(matches!(take(&inbox), Some(Asked::Reports(one)) if one.len() == 1));
    }
}
