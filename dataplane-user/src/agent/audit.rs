//! Watches the tables for what is not as it should be: reads them now and then, remembers since when, answers `audit`, and mends what the operator
//! names.
//!
//! Ages need a memory between two `audit`s, and it must be the agent's: it begins anew with each agent, so that nothing is a fault before it
//! has been watched for long enough.

mod mend;
mod read;
mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::{
    flags::monotonic_ns,
    plan::{
        Mode,
        audit::{Cidr, Drops, Kind, Part, State, Tracker},
    },
};

pub(super) use mend::repair;
pub(super) use rows::report;

/// How often each part is read: so many times until a difference is a fault, within these bounds.
const READINGS: u32 = 6;
const SOONEST: Duration = Duration::from_millis(500);
const LATEST: Duration = Duration::from_secs(10);
/// By how much longer the pause is than the reading: 1 % of a processor for each part at most.
const PAUSE: u32 = 99;

/// How it is watched.
#[derive(Clone, Debug)]
pub struct AuditSettings {
    /// After how long a difference is a fault.
    pub fault_after: Duration,
    /// What is mended without being asked.
    pub repair: BTreeSet<Kind>,
    /// Virtual addresses of others, as kube-proxy's `ipvs.excludeCIDRs`.
    pub excluded: Vec<Cidr>,
}

impl Default for AuditSettings {
    /// Two of kube-proxy's syncs (`syncPeriod`, 30 s), and nothing mended.
    fn default() -> Self {
        Self { fault_after: Duration::from_secs(60), repair: BTreeSet::new(), excluded: Vec::new() }
    }
}

/// What was seen so far.
pub(super) struct Audit {
    watch: Mutex<Watch>,
}

impl Audit {
    pub(super) fn new(settings: &AuditSettings) -> Self {
        Self {
            watch: Mutex::new(Watch {
                tracker: Tracker::new(settings.fault_after),
                drops: Drops::default(),
                due: BTreeMap::new(),
                not_looked_at: BTreeMap::new(),
                told: BTreeMap::new(),
            }),
        }
    }

    /// One reader at a time.
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watch {
    tracker: Tracker,
    drops: Drops,
    /// When each part is to be read again.
    due: BTreeMap<Part, Duration>,
    /// Kinds that nothing is known of, and why.
    not_looked_at: BTreeMap<Kind, String>,
    /// Faults that the log was told of.
    told: BTreeMap<Kind, usize>,
}

fn now() -> Duration {
    Duration::from_nanos(monotonic_ns())
}

impl Watch {
    /// Reads parts, and takes note of what differs. Blocking.
    fn look(&mut self, core: &Core, parts: impl IntoIterator<Item = Part>) {
        let every = (self.tracker.fault_after() / READINGS).clamp(SOONEST, LATEST);
        for part in parts {
            let begun = now();
            let reading = read::read(core, part, &mut self.drops, self.tracker.fault_after());
            let read = now();
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
        self.tell();
    }

    /// Parts that are to be read now.
    fn due(&self) -> Vec<Part> {
        let now = now();
        Part::ALL.into_iter().filter(|part| self.due.get(part).is_none_or(|due| *due <= now)).collect()
    }

    /// How long nothing is to be read.
    fn pause(&self) -> Duration {
        let next = Part::ALL.iter().map(|part| self.due.get(part).copied().unwrap_or_default()).min();
        next.unwrap_or_default().saturating_sub(now())
    }

    /// Tells the log which kinds have faults that had none, and the other way round.
    fn tell(&mut self) {
        let mut faults: BTreeMap<Kind, usize> = BTreeMap::new();
        for observed in self.tracker.observed(now()).filter(|observed| observed.state == State::Fault) {
            *faults.entry(observed.difference.kind).or_default() += 1;
        }
        for (kind, count) in faults.iter().filter(|(kind, _)| !self.told.contains_key(*kind)) {
            tracing::warn!(%kind, count, "audit: faults (see nodefence audit)");
        }
        for kind in self.told.keys().filter(|kind| !faults.contains_key(*kind)) {
            tracing::info!(%kind, "audit: no faults any more");
        }
        self.told = faults;
    }
}

/// Watches, and mends what is to be mended without being asked, until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        let core = Arc::clone(&core);
        pause = tokio::task::spawn_blocking(move || {
            let mut watch = core.audit.watch();
            let due = watch.due();
            watch.look(&core, due);
            let kinds = &core.settings.audit.repair;
            if !kinds.is_empty() && core.settings.mode == Mode::Enforce {
                mend::mend(&core, &mut watch, kinds);
            }
            watch.pause()
        })
        .await?
        .max(SOONEST / 5);
    }
}
