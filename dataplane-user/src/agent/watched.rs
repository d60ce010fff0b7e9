//! Differences that readings of the tables have shown, since when, and when each part is to be read again.

use std::{collections::BTreeMap, time::Duration};

use tokio::sync::watch;

use super::settings::AuditSettings;
use crate::{
    flags::monotonic_ns,
    plan::audit::{Found, Kind, Part, State, Tracker},
};

/// How many times each part is read until a difference is a fault, within the next two bounds.
const READINGS: u32 = 6;
/// The shortest time between two readings of a part.
pub(super) const SOONEST: Duration = Duration::from_millis(500);
/// The longest time between two readings of a part that is read quickly.
const LATEST: Duration = Duration::from_secs(10);
/// How many times as long as a reading the pause after it is at least: 1 % of a processor for each part at most.
const PAUSE: u32 = 99;

/// The outcome of reading a part.
pub(super) struct Reading {
    /// `None` where the part changed too fast to be read whole.
    pub(super) found: Option<Found>,
    /// The kinds of the part that were not looked at, and why.
    pub(super) not_looked_at: BTreeMap<Kind, String>,
}

/// All that readings have shown so far.
pub(super) struct AuditMemory {
    pub(super) tracker: Tracker,
    /// When each part is to be read again.
    due: BTreeMap<Part, Duration>,
    /// Kinds that nothing is known of, and why.
    pub(super) not_looked_at: BTreeMap<Kind, String>,
    /// How many faults of each kind were there when the log was last told.
    told: watch::Sender<BTreeMap<Kind, usize>>,
}

/// The time (CLOCK_MONOTONIC) of readings.
pub(super) fn now() -> Duration {
    Duration::from_nanos(monotonic_ns())
}

impl AuditMemory {
    /// A memory that has seen nothing yet.
    pub(super) fn new(settings: &AuditSettings) -> Self {
        Self {
            tracker: Tracker::new(settings.fault_after),
            due: BTreeMap::new(),
            not_looked_at: BTreeMap::new(),
            told: watch::Sender::default(),
        }
    }

    /// Notes the result of the reading of a part, which went on from `begun` to `read`.
    pub(super) fn take(
        &mut self,
        part: Part,
        reading: Result<Reading, String>,
        begun: Duration,
        read: Duration,
    ) {
        let every = (self.tracker.fault_after() / READINGS).clamp(SOONEST, LATEST);
        self.not_looked_at.retain(|kind, _| kind.part() != part);
        match reading {
            Ok(reading) => {
                // Nothing is concluded from half a list; what was known stays.
                if let Some(found) = reading.found {
                    self.tracker.note(part, found, read);
                }
                self.not_looked_at.extend(reading.not_looked_at);
            }
            Err(why) => {
                self.tracker.forget(part);
                self.not_looked_at.extend(part.kinds().iter().map(|kind| (*kind, why.clone())));
            }
        }
        self.due.insert(part, read + every.max((read - begun) * PAUSE));
    }

    /// Parts that are to be read now.
    pub(super) fn due(&self) -> Vec<Part> {
        let now = now();
        Part::ALL.into_iter().filter(|part| self.due.get(part).is_none_or(|due| *due <= now)).collect()
    }

    /// How long until a part is to be read.
    pub(super) fn pause(&self) -> Duration {
        let next = Part::ALL.iter().map(|part| self.due.get(part).copied().unwrap_or_default()).min();
        next.unwrap_or_default().saturating_sub(now())
    }

    /// How many faults of each kind the audit last found.
    pub(super) fn faults(&self) -> watch::Receiver<BTreeMap<Kind, usize>> {
        self.told.subscribe()
    }

    /// Logs which kinds have faults that had none, and which have none any more.
    pub(super) fn tell(&mut self) {
        let mut faults: BTreeMap<Kind, usize> = BTreeMap::new();
        for observed in self.tracker.observed(now()).filter(|observed| observed.state == State::Fault) {
            *faults.entry(observed.difference.kind).or_default() += 1;
        }
        let told = self.told.send_replace(faults.clone());
        for (kind, count) in faults.iter().filter(|(kind, _)| !told.contains_key(*kind)) {
            tracing::warn!(event = "audit-faults", %kind, count, "the audit found faults of this kind (see `nodefence audit`)");
        }
        for kind in told.keys().filter(|kind| !faults.contains_key(*kind)) {
            tracing::info!(event = "audit-faults-over", %kind, "the audit finds no faults of this kind any more");
        }
    }
}
