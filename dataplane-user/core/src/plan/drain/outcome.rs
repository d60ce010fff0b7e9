//! The outcomes of acts.
use std::time::Duration;

use super::{Act, Drain, Kind, REFUSED, SOON, WATCHED, owned::Step};
use crate::{
    ipvs::ChangeOutcome,
    ledger::{Phase, Record},
};

impl Drain {
    /// Takes the outcome of an act. Returns what must be written to the ledger now.
    pub fn done(&mut self, act: &Act, outcome: ChangeOutcome, now: Duration) -> Option<Record> {
        let pair = act.pair;
        match act.kind {
            Kind::Remove => {
                self.removed(&pair, outcome, now);
                return None;
            }
            Kind::Recede => return self.receded(act, outcome, now),
            _ => {}
        }
        let forgotten = matches!(
            (act.kind, outcome),
            (Kind::Forget, _)
                | (_, ChangeOutcome::NoService | ChangeOutcome::NoDestination)
                | (Kind::Restore, ChangeOutcome::Done)
        );
        if forgotten {
            // Others removed the destination, or it is restored.
            if self.node_of(&pair).is_some() {
                self.watched.insert(pair.service, now + WATCHED);
            }
            let owned = self.owned.remove(&pair)?;
            if act.kind == Kind::Restore && outcome == ChangeOutcome::Done {
                self.remember_raised(pair, owned, now);
            }
            return Some(Record::Drop(pair));
        }
        let owned = self.owned.get_mut(&pair)?;
        match (act.kind, outcome) {
            (Kind::Note, _) => None,
            (Kind::Lower, ChangeOutcome::Done) => {
                owned.problem = None;
                owned.due = now;
                owned.since = Some(now);
                None
            }
            (Kind::Delete, ChangeOutcome::Done | ChangeOutcome::Unknown) => {
                owned.problem = None;
                owned.step = Step::Flushing { since: now };
                owned.due = now + owned.shortest_wait();
                None
            }
            (Kind::Bury, ChangeOutcome::Done) => {
                owned.problem = None;
                owned.entry.phase = Phase::Tombstone;
                owned.step = Step::Resting;
                owned.due = now + SOON;
                Some(Record::Phase(pair, Phase::Tombstone))
            }
            // Somebody else added the destination: the next reading says how.
            (_, ChangeOutcome::Exists) => {
                owned.due = now;
                None
            }
            (_, ChangeOutcome::Refused(errno)) => {
                let error = std::io::Error::from_raw_os_error(errno);
                owned.problem = Some(format!("the kernel refused to change it: {error}"));
                owned.due = now + REFUSED;
                owned.not_before = owned.due;
                None
            }
            _ => {
                owned.due = now + SOON;
                None
            }
        }
    }
}
