use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Difference, Found, Grace, Kind, Part, Subject};

/// kube-proxy looks once a minute at what it ends gently, however often it syncs (`rsCheckDeleteInterval`, pkg/proxy/ipvs/graceful_termination.go):
/// two of its looks.
const TERMINATION: Duration = Duration::from_secs(120);

/// What a difference counts as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It has been there for longer than it should be.
    Fault,
    /// kube-proxy may still mend it.
    New,
    /// It ends in order: weight 0, and connections that go on.
    Draining,
}

/// A difference that is there, and since when.
#[derive(Clone, Debug)]
pub struct Observed {
    /// As last read.
    pub difference: Difference,
    /// When it was first seen, in readings without a gap.
    pub since: Duration,
    /// What it counts as now.
    pub state: State,
}

#[derive(Debug)]
struct Entry {
    difference: Difference,
    since: Duration,
}

/// Remembers since when differences have been there. `now` is CLOCK_MONOTONIC everywhere.
#[derive(Debug)]
pub struct Tracker {
    fault_after: Duration,
    entries: HashMap<(Kind, Subject), Entry>,
    left_out: BTreeMap<Kind, usize>,
    /// When each part was first read, in readings without a gap.
    watched: BTreeMap<Part, Duration>,
}

impl Tracker {
    /// A difference is a fault after so long: two of kube-proxy's syncs.
    pub fn new(fault_after: Duration) -> Self {
        Self { fault_after, entries: HashMap::new(), left_out: BTreeMap::new(), watched: BTreeMap::new() }
    }

    /// After how long a difference is a fault.
    pub fn fault_after(&self) -> Duration {
        self.fault_after
    }

    /// Takes a whole reading of a part: what is not in it is gone.
    pub fn note(&mut self, part: Part, found: Found, now: Duration) {
        self.watched.entry(part).or_insert(now);
        let mut before: HashMap<(Kind, Subject), Entry> =
            self.entries.extract_if(|(kind, _), _| kind.part() == part).collect();
        self.left_out.retain(|kind, _| kind.part() != part);
        self.left_out.extend(found.left_out());
        for difference in found.differences {
            let key = (difference.kind, difference.subject.clone());
            // A list that the kernel broke off tells some twice. What there was before was drained above.
            if self.entries.contains_key(&key) {
                continue;
            }
            let ends = |difference: &Difference| difference.grace == Grace::Draining;
            // What ended in order and does not any more begins anew, and the other way round.
            let same = before.remove(&key).filter(|old| ends(&old.difference) == ends(&difference));
            let since = same.map_or(now, |old| old.since);
            self.entries.insert(key, Entry { difference, since });
        }
    }

    /// A part cannot be looked at any more: nothing is known of it.
    pub fn forget(&mut self, part: Part) {
        self.watched.remove(&part);
        self.entries.retain(|(kind, _), _| kind.part() != part);
        self.left_out.retain(|kind, _| kind.part() != part);
    }

    /// Since when a part has been looked at.
    pub fn watched(&self, part: Part) -> Option<Duration> {
        self.watched.get(&part).copied()
    }

    /// All that is there.
    pub fn observed(&self, now: Duration) -> impl Iterator<Item = Observed> + '_ {
        self.entries.values().map(move |entry| Observed {
            difference: entry.difference.clone(),
            since: entry.since,
            state: self.state(entry, now),
        })
    }

    /// How many differences of each kind there was no room for.
    pub fn left_out(&self) -> &BTreeMap<Kind, usize> {
        &self.left_out
    }

    fn state(&self, entry: &Entry, now: Duration) -> State {
        let age = now.saturating_sub(entry.since);
        let patience = match entry.difference.grace {
            Grace::Draining => return State::Draining,
            Grace::Sync => self.fault_after,
            Grace::Termination => (self.fault_after * 2).max(TERMINATION),
        };
        if age >= patience { State::Fault } else { State::New }
    }
}
