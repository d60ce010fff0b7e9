mod look;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Book, Tables};
use crate::{
    ipvs::{self, Change, Service, ServiceKey},
    ledger::{self, Record},
    plan::drain::{Act, Drain, DrainSettings, Flagged},
};

/// Changes made at once. Between two batches the lease is looked at, and others may change the tables.
const BATCH: usize = 256;
/// Changes made in one round. Between two rounds the services are looked at that packets wait for.
const AT_ONCE: usize = 4 * BATCH;
/// How often services are looked at that packets wait for, at most: each waiting packet asks for it. At most one part in
/// [`SHARE_OF_URGENT`] of the time goes into these looks.
const URGENT_EVERY: Duration = Duration::from_millis(20);
const SHARE_OF_URGENT: u32 = 4;
/// How often such a service is looked at in a row while something is left to be done: weight 0, then deletion.
const URGENT_LOOKS: usize = 3;

/// Why a round was not finished.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The tables could not be read or changed.
    #[error(transparent)]
    Tables(#[from] ipvs::Error),
    /// The ledger could not be written. No change is made that is not in the ledger.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
}

/// What a round did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// Changes made.
    pub changes: usize,
    /// The lease has lapsed: nothing may be changed any more by the earlier reading.
    pub lapsed: bool,
}

/// Reads the tables, plans, writes the ledger and changes the tables, again and again.
#[derive(Debug)]
pub struct Drive<T, B> {
    /// The plan.
    pub machine: Drain,
    tables: T,
    book: B,
    /// Planned lines may be missing in the ledger, though the plan takes them for written.
    unwritten: bool,
    /// Something was deleted, and [`Tables::settle`] is yet to follow.
    unsettled: bool,
    /// Acts that an earlier round planned and that are yet to be done.
    planned: Vec<Act>,
    /// The services that were looked at, as last read.
    services: BTreeMap<ServiceKey, Service>,
    next_owned: Duration,
    next_all: Duration,
    /// Services that packets wait for.
    urgent: BTreeSet<ServiceKey>,
    next_urgent: Duration,
    alive: Duration,
    gave_way: Duration,
}

impl<T: Tables, B: Book> Drive<T, B> {
    /// Begins with a reading of everything.
    pub fn new(machine: Drain, tables: T, book: B) -> Self {
        let begun = tables.now();
        Self {
            machine,
            tables,
            book,
            unwritten: false,
            unsettled: false,
            planned: Vec::new(),
            services: BTreeMap::new(),
            next_owned: Duration::ZERO,
            next_all: Duration::ZERO,
            urgent: BTreeSet::new(),
            next_urgent: Duration::ZERO,
            alive: begun,
            gave_way: begun,
        }
    }

    /// The ledger.
    pub fn book(&mut self) -> &mut B {
        &mut self.book
    }

    /// Goes on with another socket to the tables.
    pub fn replace_tables(&mut self, tables: T) {
        self.settle();
        self.tables = tables;
        self.read_all();
    }

    /// Says who is flagged now. The next round reads everything where that calls for it.
    pub fn set_flagged(&mut self, flagged: &[Flagged]) {
        if self.machine.set_flagged(flagged, self.tables.now()) {
            self.read_all();
        }
        if flagged.is_empty() {
            self.tables.forget_flows();
        }
    }

    /// Says how the kernel is set now.
    pub fn set_settings(&mut self, settings: DrainSettings) {
        if self.machine.set_settings(settings, self.tables.now()) {
            self.read_all();
        }
    }

    /// Has the next round read everything.
    pub fn read_all(&mut self) {
        self.next_all = Duration::ZERO;
        self.drop_planned();
    }

    /// Has one of the next rounds look at these services, whatever else it reads. Each may have been made after everything was last read.
    pub fn urge(&mut self, services: impl IntoIterator<Item = ServiceKey>) {
        self.urgent.extend(services);
    }

    /// Whether urgent services are yet to be looked at.
    pub fn is_urged(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// When the next round is due. `flagged`: whether any node is flagged. Without a flag only what is ours matters.
    pub fn next(&self, flagged: bool) -> Option<Duration> {
        if self.unwritten || self.unsettled || !self.planned.is_empty() {
            return Some(Duration::ZERO);
        }
        let all = (flagged || self.next_all == Duration::ZERO).then_some(self.next_all);
        let owned = self.machine.has_services().then_some(self.next_owned);
        let urgent = (flagged && self.is_urged()).then_some(self.next_urgent);
        [all, owned, urgent, self.machine.next_due()].into_iter().flatten().min()
    }

    /// Reads what is due, and changes what is to be changed.
    ///
    /// # Errors
    /// Where the tables or the ledger cannot be used. What was found and done until then holds. The next round goes on, and first writes
    /// the lines that this one may not have written.
    pub fn round(&mut self) -> Result<Round, Failure> {
        let written = self.write_what_was_not();
        if let Ok(false) = written {
            return Ok(Round { lapsed: true, ..Round::default() });
        }
        // Weights can be restored even where the disk is full.
        let done = self.look_and_change();
        if !matches!(done, Ok(Round { lapsed: false, .. })) {
            self.unwritten = true;
            self.drop_planned();
        }
        let round = done?;
        written?;
        Ok(round)
    }

    /// False where the lease has lapsed.
    fn write_what_was_not(&mut self) -> Result<bool, ledger::Error> {
        if !self.unwritten {
            return Ok(true);
        }
        let Some(_turn) = self.book.begin(&[])? else { return Ok(false) };
        self.book.write_all(&self.machine.entries())?;
        self.unwritten = false;
        Ok(true)
    }

    fn look_and_change(&mut self) -> Result<Round, Failure> {
        let begun = self.tables.now();
        // A quick reading does not give way.
        self.gave_way = begun;
        if self.is_urged() && begun >= self.next_urgent {
            let round = self.hurry()?;
            let done = self.tables.now();
            self.next_urgent = done + URGENT_EVERY.max(done.saturating_sub(begun) * SHARE_OF_URGENT);
            return Ok(round);
        }
        let mut acts = std::mem::take(&mut self.planned);
        if acts.is_empty() {
            self.settle();
            acts = self.plan()?;
        }
        self.planned = acts.split_off(acts.len().min(AT_ONCE));
        let round = self.carry_out(&acts)?;
        let all_written = !self.unwritten && self.planned.is_empty();
        if round.lapsed {
            self.read_all();
        } else if all_written && (acts.is_empty() || self.machine.is_empty()) {
            // Also after the last destination was restored: there may be no other round, and a ledger of mere history would keep the guard
            // busy.
            let machine = &self.machine;
            self.book.rest(machine.len(), || machine.entries())?;
        }
        Ok(round)
    }

    /// Looks at the services that packets wait for, and at no others. The others come with the next round, which is due at once.
    fn hurry(&mut self) -> Result<Round, Failure> {
        let mut urgent = std::mem::take(&mut self.urgent);
        // Acts that are planned for these services go first.
        let planned = std::mem::take(&mut self.planned);
        let (first, later) = planned.into_iter().partition(|act| urgent.contains(&act.pair.service));
        self.planned = later;
        let mut acts: Vec<Act> = first;
        let mut round = self.carry_out(&acts)?;
        for _ in 0..URGENT_LOOKS {
            if round.lapsed || urgent.is_empty() {
                break;
            }
            acts.clear();
            let counts = self.count(|pair| urgent.contains(&pair.service));
            for key in &urgent {
                self.look_at(*key, counts.as_ref(), &mut acts)?;
            }
            Drain::sort(&mut acts);
            let Round { changes, lapsed } = self.carry_out(&acts)?;
            round = Round { changes: round.changes + changes, lapsed };
            let due = self.machine.due(self.tables.now());
            urgent.retain(|key| due.contains(key));
        }
        if round.lapsed {
            self.read_all();
        }
        Ok(round)
    }

    /// Drops the planned acts: they are planned anew by a new reading.
    fn drop_planned(&mut self) {
        // Their lines were not written.
        self.unwritten |= !self.planned.is_empty();
        self.planned.clear();
    }

    /// Settles once for all deletions, and not in the round that made them: packets that wait for the deletion are rescued meanwhile.
    fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            self.tables.settle(&self.machine.ours());
        }
    }

    fn carry_out(&mut self, acts: &[Act]) -> Result<Round, Failure> {
        let mut round = Round::default();
        for batch in acts.chunks(BATCH) {
            let before: Vec<Record> = batch.iter().filter_map(|act| act.before.clone()).collect();
            let Some(turn) = self.book.begin(&before)? else {
                round.lapsed = true;
                return Ok(round);
            };
            let changes: Vec<Change> = batch.iter().filter_map(|act| act.change.clone()).collect();
            let applied = self.tables.apply(&changes);
            drop(turn);
            self.unsettled |= changes.iter().any(|change| matches!(change, Change::DeleteDestination(..)));
            round.changes += changes.len();
            let now = self.tables.now();
            let mut outcomes = applied.outcomes.into_iter();
            let mut after = Vec::new();
            for act in batch {
                let outcome = match act.change {
                    Some(_) => outcomes.next().unwrap_or(ipvs::ChangeOutcome::Unknown),
                    None => ipvs::ChangeOutcome::Done,
                };
                after.extend(self.machine.done(act, outcome, now));
            }
            round.lapsed = !self.book.is_ours();
            if round.lapsed {
                // This process may have stood still before it made the changes. Meanwhile the guard may have struck their destinations from
                // the ledger. They are written again, whole, so that they are restored.
                let mut entries = self.machine.entries();
                let named = batch.iter().filter_map(|act| entries.remove_entry(&act.pair));
                after = named.map(|(pair, entry)| Record::Own(pair, entry)).chain(after).collect();
            }
            self.book.note(&after)?;
            if let Some(failure) = applied.failure {
                return Err(failure.into());
            }
            if round.lapsed {
                return Ok(round);
            }
        }
        Ok(round)
    }
}
