use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Difference, Found, Grace, Kind, Part, Subject};

/// Two checks of kube-proxy: it looks once a minute at destinations that it ends gently, however often it syncs (`rsCheckDeleteInterval`,
/// pkg/proxy/ipvs/graceful_termination.go).
const TERMINATION: Duration = Duration::from_secs(120);

/// Whether a difference is a fault.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, schemars::JsonSchema,
)]
#[schemars(rename = "DifferenceState")]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The difference has lasted for too long.
    Fault,
    /// The difference is not a fault yet: kube-proxy may still mend it.
    New,
    /// The difference is a destination that ends in order: it has weight 0, and its connections go on.
    Draining,
}

/// A difference that is there, and since when.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The difference as last read.
    pub difference: Difference,
    /// When the difference was first seen, in readings without a gap.
    pub since: Duration,
    /// What the difference counts as now.
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
    /// `fault_after`: how long a difference must be there to be a fault, two of kube-proxy's syncs.
    pub fn new(fault_after: Duration) -> Self {
        Self { fault_after, entries: HashMap::new(), left_out: BTreeMap::new(), watched: BTreeMap::new() }
    }

    /// After how long a difference is a fault.
    pub fn fault_after(&self) -> Duration {
        self.fault_after
    }

    /// Takes a whole reading of a part: differences that are not in it are gone.
    pub fn note(&mut self, part: Part, found: Found, now: Duration) {
        self.watched.entry(part).or_insert(now);
        let mut before: HashMap<(Kind, Subject), Entry> =
            self.entries.extract_if(|(kind, _), _| kind.part() == part).collect();
        self.left_out.retain(|kind, _| kind.part() != part);
        self.left_out.extend(found.left_out());
        for difference in found.differences {
            let key = (difference.kind, difference.subject.clone());
            // A listing that the kernel broke off has some entries twice. The entries from before were removed above.
            if self.entries.contains_key(&key) {
                continue;
            }
            let ends = |difference: &Difference| difference.grace == Grace::Draining;
            // A difference that ended in order and no longer does begins anew, and the other way round.
            let same = before.remove(&key).filter(|old| ends(&old.difference) == ends(&difference));
            let since = same.map_or(now, |old| old.since);
            self.entries.insert(key, Entry { difference, since });
        }
    }

    /// Forgets a part that cannot be read any more: nothing is known of it.
    pub fn forget(&mut self, part: Part) {
        self.watched.remove(&part);
        self.entries.retain(|(kind, _), _| kind.part() != part);
        self.left_out.retain(|kind, _| kind.part() != part);
    }

    /// Since when a part has been read.
    pub fn watched(&self, part: Part) -> Option<Duration> {
        self.watched.get(&part).copied()
    }

    /// All differences that are there.
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
