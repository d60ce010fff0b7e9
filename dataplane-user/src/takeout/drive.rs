use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    ipvs::{self, Applied, Change, Destination, Listed, Service, ServiceKey},
    ledger::{self, Entry, Pair, Record},
    plan::takeout::{Act, Counts, Flagged, TakeOut},
};

/// Changes made at once; in between the lease is renewed, and others may change the tables.
const BATCH: usize = 256;
/// How often what is ours is read back: a destination that others gave a weight to again gets no flow for longer than this and a reading.
const OWNED_EVERY: Duration = Duration::from_millis(150);
/// How often all services are read: for pairs that were not there before.
const ALL_EVERY: Duration = Duration::from_secs(1);
/// At most one part in this many of the time goes into reading what is ours back by itself, and into reading everything, with which what is ours is read once
/// more.
const SHARE_OF_OWNED: u32 = 30;
const SHARE_OF_ALL: u32 = 60;
/// How often services are looked at that somebody waits for, at most; and at most one part in this many of the time goes into it: each packet that waits
/// asks for it.
const URGENT_EVERY: Duration = Duration::from_millis(20);
const SHARE_OF_URGENT: u32 = 4;
/// How often the lease is prolonged while the tables are read: large ones on a busy machine take longer than it holds.
const HOLD_EVERY: Duration = Duration::from_millis(500);

/// How often somebody else may have the processor while many services are read. This thread has precedence over all that does not renew verdicts or rescue
/// packets; on a machine with one processor nobody would get an answer for seconds.
const GIVE_WAY_EVERY: Duration = Duration::from_millis(20);

/// The tables: the kernel's, or a test's.
pub trait Tables {
    /// CLOCK_MONOTONIC.
    fn now(&self) -> Duration;

    /// Leaves the processor to others for a moment.
    fn give_way(&self);

    /// All services.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn services(&mut self) -> Result<Listed<Service>, ipvs::Error>;

    /// One service; `None` where there is no such.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, ipvs::Error>;

    /// The destinations of one service; none where there is no such service.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, ipvs::Error>;

    /// Makes changes in their order.
    fn apply(&mut self, changes: &[Change]) -> Applied;

    /// How many connections to these destinations conntrack has; left out are those of which it cannot tell.
    fn count(&mut self, pairs: &[Pair]) -> Counts;
}

/// The ledger and its lease.
pub trait Book {
    /// What keeps others from changing the tables while it lives.
    type Turn;

    /// Writes what is about to be done. `None`, and nothing is written, where the lease has lapsed or is another's: what was believed does not
    /// hold any more.
    ///
    /// # Errors
    /// Where it was not all written: then nothing may be done.
    fn begin(&mut self, records: &[Record]) -> Result<Option<Self::Turn>, ledger::Error>;

    /// Prolongs the lease, if it still holds; else the next [`Self::begin`] says so.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    fn hold(&mut self) -> Result<(), ledger::Error>;

    /// Writes all that is ours, in place of what stands there. Only while a turn is held.
    ///
    /// # Errors
    /// Where that fails: the old lines stay.
    fn write_all(&mut self, entries: &BTreeMap<Pair, Entry>) -> Result<(), ledger::Error>;

    /// Writes what was done.
    ///
    /// # Errors
    /// Where it was not all written.
    fn note(&mut self, records: &[Record]) -> Result<(), ledger::Error>;

    /// Nothing is to be done at the moment: time to write history away. `entries` gives what is ours, `count` of them.
    ///
    /// # Errors
    /// Where that fails.
    fn rest(
        &mut self,
        count: usize,
        entries: impl FnOnce() -> BTreeMap<Pair, Entry>,
    ) -> Result<(), ledger::Error>;
}

/// Why a round was not finished.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The tables could not be read or changed.
    #[error(transparent)]
    Tables(#[from] ipvs::Error),
    /// The ledger could not be written: nothing is done that is not in it.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
}

/// What a round did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// Changes made.
    pub changes: usize,
    /// The lease was lost: it must be claimed again, and the next round reads everything.
    pub lapsed: bool,
}

/// Reads, plans, writes down, changes; again and again.
#[derive(Debug)]
pub struct Drive<T, B> {
    /// The plan.
    pub machine: TakeOut,
    tables: T,
    book: B,
    /// Lines that were planned may not have been written: the plan takes them for written.
    unwritten: bool,
    /// As last listed.
    services: BTreeMap<ServiceKey, Service>,
    next_owned: Duration,
    next_all: Duration,
    /// Services that packets wait for.
    urgent: BTreeSet<ServiceKey>,
    next_urgent: Duration,
    held: Duration,
    gave_way: Duration,
}

impl<T: Tables, B: Book> Drive<T, B> {
    /// Begins with a reading of everything.
    pub fn new(machine: TakeOut, tables: T, book: B) -> Self {
        let held = tables.now();
        Self {
            machine,
            tables,
            book,
            unwritten: false,
            services: BTreeMap::new(),
            next_owned: Duration::ZERO,
            next_all: Duration::ZERO,
            urgent: BTreeSet::new(),
            next_urgent: Duration::ZERO,
            held,
            gave_way: held,
        }
    }

    /// The ledger.
    pub fn book(&mut self) -> &mut B {
        &mut self.book
    }

    /// Goes on with another socket to the tables.
    pub fn replace_tables(&mut self, tables: T) {
        self.tables = tables;
        self.read_all();
    }

    /// Says who is flagged now. The next round reads everything where that calls for it.
    pub fn set_flagged(&mut self, flagged: &[Flagged]) {
        if self.machine.set_flagged(flagged, self.tables.now()) {
            self.read_all();
        }
    }

    /// Has the next round read everything.
    pub fn read_all(&mut self) {
        self.next_all = Duration::ZERO;
    }

    /// The lease was claimed again after it had lapsed: writes what is ours. `put_back`: up to when (CLOCK_MONOTONIC) what was changed is known to have been
    /// put back by others.
    ///
    /// # Errors
    /// Where it cannot be written: the next round says that the lease has lapsed, or writes it.
    pub fn claimed_again(&mut self, put_back: Option<Duration>) -> Result<(), ledger::Error> {
        if let Some(deadline) = put_back {
            self.machine.put_back(deadline);
        }
        self.read_all();
        self.unwritten = true;
        // At once: no turn is given before there is a ledger again.
        self.book.write_all(&self.machine.entries())?;
        self.unwritten = false;
        Ok(())
    }

    /// Has one of the next rounds look at these services, whatever else it reads: each may be one that came after everything was last read.
    pub fn urge(&mut self, services: impl IntoIterator<Item = ServiceKey>) {
        self.urgent.extend(services);
    }

    /// Whether such services are yet to be looked at.
    pub fn is_urged(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// When the next round is due. `flagged`: whether somebody is flagged; without, only what is ours matters.
    pub fn next(&self, flagged: bool) -> Option<Duration> {
        if self.unwritten {
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
    /// Where the tables or the ledger cannot be used. What was found and done until then holds; the next round goes on, and writes first what this one may
    /// not have written.
    pub fn round(&mut self) -> Result<Round, Failure> {
        let written = self.write_what_was_not();
        if let Ok(false) = written {
            return Ok(Round { lapsed: true, ..Round::default() });
        }
        // Where the disk is full, weights can be put back all the same.
        let done = self.look_and_change();
        self.unwritten |= !matches!(done, Ok(Round { lapsed: false, .. }));
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
        // What is quickly read is not held up.
        self.gave_way = begun;
        let counts = match self.machine.flushing(begun) {
            pairs if pairs.is_empty() => None,
            pairs => Some(self.tables.count(&pairs)),
        };
        let counted = self.tables.now();
        let mut acts = Vec::new();
        let (all, owned) = (begun >= self.next_all, begun >= self.next_owned);
        let urgent = match begun >= self.next_urgent {
            true => std::mem::take(&mut self.urgent),
            false => BTreeSet::new(),
        };
        let hurried = !urgent.is_empty();
        if all {
            self.look_at_all(urgent, counts.as_ref(), &mut acts)?;
        } else {
            let keys = if owned { self.machine.services(begun) } else { self.machine.due(begun) };
            for key in keys.into_iter().chain(urgent).collect::<BTreeSet<_>>() {
                self.look_at(key, counts.as_ref(), &mut acts)?;
            }
        }
        let read = self.tables.now();
        // Counting is conntrack's matter, and ends with the flush.
        let took = read.saturating_sub(counted);
        if hurried {
            self.next_urgent = read + URGENT_EVERY.max(read.saturating_sub(begun) * SHARE_OF_URGENT);
        }
        if all {
            self.next_all = read + ALL_EVERY.max(took * SHARE_OF_ALL);
            // However long that took: to look at what is ours is another matter.
            self.next_owned = read + OWNED_EVERY;
        } else if owned {
            self.next_owned = read + OWNED_EVERY.max(took * SHARE_OF_OWNED);
        }
        TakeOut::sort(&mut acts);
        let round = self.carry_out(&acts)?;
        if round.lapsed {
            self.read_all();
        } else if !self.unwritten && (acts.is_empty() || self.machine.is_empty()) {
            // Also after the last one was put back: there may be no other round, and history alone would keep the guard busy.
            let machine = &self.machine;
            self.book.rest(machine.len(), || machine.entries())?;
        }
        Ok(round)
    }

    fn look_at_all(
        &mut self,
        urgent: BTreeSet<ServiceKey>,
        counts: Option<&Counts>,
        acts: &mut Vec<Act>,
    ) -> Result<(), Failure> {
        let listed = self.tables.services()?;
        let keys: BTreeSet<ServiceKey> = listed.items.iter().map(|service| service.key).collect();
        if !listed.incomplete {
            self.machine.listed(&keys);
        }
        self.services = listed.items.into_iter().map(|service| (service.key, service)).collect();
        // What is ours and was not listed may have been passed over: it is asked for by its key.
        let ours = self.machine.services(self.tables.now());
        for key in keys.into_iter().chain(ours).chain(urgent).collect::<BTreeSet<_>>() {
            self.look_at(key, counts, acts)?;
        }
        Ok(())
    }

    fn look_at(
        &mut self,
        key: ServiceKey,
        counts: Option<&Counts>,
        acts: &mut Vec<Act>,
    ) -> Result<(), Failure> {
        let mut now = self.tables.now();
        if now.saturating_sub(self.gave_way) >= GIVE_WAY_EVERY {
            self.tables.give_way();
            now = self.tables.now();
            self.gave_way = now;
        }
        self.hold(now)?;
        let found = self.tables.destinations(&key)?;
        if found.malformed > 0 || found.incomplete {
            // Nothing is concluded from half a list.
            return Ok(());
        }
        // A service that is gone is listed without destinations.
        if found.items.is_empty() || !self.services.contains_key(&key) {
            match self.tables.service(&key)? {
                Some(service) => drop(self.services.insert(key, service)),
                None => {
                    self.services.remove(&key);
                    self.machine.gone(key, acts);
                    return Ok(());
                }
            }
        }
        if let Some(service) = self.services.get(&key) {
            // A clock may take as long as a reading (HPET): the time before it will do.
            self.machine.look(service, &found.items, counts, now, acts);
        }
        Ok(())
    }

    fn hold(&mut self, now: Duration) -> Result<(), ledger::Error> {
        if now.saturating_sub(self.held) >= HOLD_EVERY {
            self.held = now;
            self.book.hold()?;
        }
        Ok(())
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
            round.changes += changes.len();
            let now = self.tables.now();
            let mut outcomes = applied.outcomes.into_iter();
            let mut after = Vec::new();
            for act in batch {
                let outcome = match act.change {
                    Some(_) => outcomes.next().unwrap_or(ipvs::Outcome::Unknown),
                    None => ipvs::Outcome::Done,
                };
                after.extend(self.machine.done(act, outcome, now));
            }
            self.book.note(&after)?;
            if let Some(failure) = applied.failure {
                return Err(failure.into());
            }
        }
        Ok(round)
    }
}
