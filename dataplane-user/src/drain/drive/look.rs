//! Reading the tables and planning by what was read.
use std::{collections::BTreeSet, time::Duration};

use super::{Drive, Failure};
use crate::{
    drain::{Book, Tables},
    ipvs::{self, ServiceKey},
    ledger::Pair,
    plan::drain::{Act, Counts, Drain},
};

/// How often what is ours is read back. A destination that others gave a weight again gets flows for no longer than this and a reading.
const OWNED_EVERY: Duration = Duration::from_millis(150);
/// How often all services are read: for pairs that were not there before.
const ALL_EVERY: Duration = Duration::from_secs(1);
/// Where what is ours is read within [`READ_SOON`], others' changes are undone at most this long after they were made: the reading after
/// the change finds them.
const UNDONE: Duration = Duration::from_millis(500);
const READ_SOON: Duration = Duration::from_millis(100);
/// At most one part in so many of the time goes into reading back what is ours by itself, where that takes longer, and into reading
/// everything, which reads what is ours once more.
const SHARE_OF_OWNED: u32 = 30;
const SHARE_OF_ALL: u32 = 60;
/// How often a sign of life is given while the tables are read.
const ALIVE_EVERY: Duration = Duration::from_millis(500);

/// How many services are passed over between two looks at the clock. A look may take as long as passing over a service (HPET).
const LOOKED_AT_ONCE: usize = 16;

/// How often others may have the processor while many services are read. This thread has precedence over all but those that renew verdicts
/// and rescue packets. On a machine with one processor nobody else would get an answer for seconds.
const GIVE_WAY_EVERY: Duration = Duration::from_millis(20);

/// The pause after a reading of what is ours, which `took` so long. A change may come right behind a reading, so that two readings pass
/// before it is undone.
fn pause_of_owned(took: Duration) -> Duration {
    let share = took * SHARE_OF_OWNED;
    let pause = if took <= READ_SOON { share.min(UNDONE.saturating_sub(took * 2)) } else { share };
    pause.max(OWNED_EVERY)
}

impl<T: Tables, B: Book> Drive<T, B> {
    /// Reads what is due; returns the acts that are to be done.
    pub(super) fn plan(&mut self) -> Result<Vec<Act>, Failure> {
        let counts = self.count(|_| true);
        // Counting concerns conntrack, and ends with the flush, so it is not timed.
        let begun = self.tables.now();
        let mut acts = Vec::new();
        let all = begun >= self.next_all;
        let owned = begun >= self.next_owned;
        if all {
            self.look_at_all(counts.as_ref(), &mut acts)?;
        } else {
            let keys = if owned { self.machine.services(begun) } else { self.machine.due(begun) };
            for key in keys {
                self.look_at(key, counts.as_ref(), &mut acts)?;
            }
        }
        let read = self.tables.now();
        let took = read.saturating_sub(begun);
        if all {
            self.next_all = read + ALL_EVERY.max(took * SHARE_OF_ALL);
            // However long reading everything took: what is ours has its own pace.
            self.next_owned = read + OWNED_EVERY;
        } else if owned {
            self.next_owned = read + pause_of_owned(took);
        }
        Drain::sort(&mut acts);
        Ok(acts)
    }

    /// How many connections those of these pairs have that are being flushed; `None` where there is no such pair.
    pub(super) fn count(&mut self, which: impl Fn(&Pair) -> bool) -> Option<Counts> {
        let mut flushing = self.machine.flushing(self.tables.now());
        flushing.retain(which);
        (!flushing.is_empty()).then(|| self.tables.count(&flushing, &self.machine.ours()))
    }

    fn look_at_all(&mut self, counts: Option<&Counts>, acts: &mut Vec<Act>) -> Result<(), Failure> {
        let listed = self.tables.keys()?;
        let mut looked_at = BTreeSet::new();
        // Each service is requested anew where it is looked at.
        self.services.clear();
        for (number, key) in listed.items.into_iter().enumerate() {
            if number.is_multiple_of(LOOKED_AT_ONCE) {
                self.pause();
            }
            // Nearly all services of a large table do not concern us.
            let concerned = self.machine.knows(key) || self.may_concern(&key)?;
            if concerned && looked_at.insert(key) {
                self.look_at(key, counts, acts)?;
            }
        }
        if !listed.incomplete {
            self.machine.listed(&looked_at);
        }
        // What is ours, or was until a moment ago, and was not looked at, may be missing in the list. Such a service is requested by its
        // key.
        for key in self.machine.services(self.tables.now()).difference(&looked_at) {
            self.look_at(*key, counts, acts)?;
        }
        Ok(())
    }

    fn may_concern(&mut self, key: &ServiceKey) -> Result<bool, Failure> {
        let machine = &self.machine;
        let is = |destination| machine.concerns(key, destination);
        Ok(self.tables.may_have(key, &is)?)
    }

    pub(super) fn look_at(
        &mut self,
        key: ServiceKey,
        counts: Option<&Counts>,
        acts: &mut Vec<Act>,
    ) -> Result<(), Failure> {
        let now = self.pause();
        let found = self.tables.destinations(&key)?;
        if found.malformed > 0 || found.incomplete {
            // Nothing is concluded from half a list.
            return Ok(());
        }
        // A service that is gone is listed without destinations.
        if found.items.is_empty() || !self.services.contains_key(&key) {
            let service = match self.tables.service(&key) {
                // The service is of a later kernel. Nothing is known of it, and others are drained all the same.
                Err(ipvs::Error::Malformed { .. }) => return Ok(()),
                read => read?,
            };
            match service {
                Some(service) => drop(self.services.insert(key, service)),
                None => {
                    self.services.remove(&key);
                    self.machine.gone(key, acts);
                    return Ok(());
                }
            }
        }
        if let Some(service) = self.services.get(&key) {
            // The time before the reading is good enough: reading the clock may take as long as the service.
            self.machine.look(service, &found.items, counts, now, acts);
        }
        Ok(())
    }

    /// Lets others have the processor, and gives a sign of life, where either is due; returns the time.
    fn pause(&mut self) -> Duration {
        let mut now = self.tables.now();
        if now.saturating_sub(self.gave_way) >= GIVE_WAY_EVERY {
            self.tables.give_way();
            now = self.tables.now();
            self.gave_way = now;
        }
        if now.saturating_sub(self.alive) >= ALIVE_EVERY {
            self.alive = now;
            self.book.alive();
        }
        now
    }
}
