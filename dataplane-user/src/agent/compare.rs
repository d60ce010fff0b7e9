//! Compares all entries of the maps with what was written, every few minutes and some entries at a time: another process may have
//! changed them. The thread `tables` does this, since it alone writes most of them. Entries that `verdicts` writes are shown to
//! `verdicts`.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use nodefence_common::{NodeEntry, PortKey};

use super::{beat::Beat, chain::chain, inbox::Inbox, timed::processor_time, world::Published};
use crate::{
    dataplane::{Comparison, TableMaps},
    enforce::{Differing, InMaps, Input},
    flags::monotonic_ns,
};

/// How many times as long as a step the pause after it is. With the cost of waking up that is 0.2 % of a processor at most.
const REST: u32 = 599;
/// After how long a verdict that differs is looked at again: it may have been on its way into the map.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The outcome of comparisons, for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ComparedRow {
    /// How often everything was compared.
    pub(super) times: u64,
    /// When everything was last compared.
    pub(super) last: Option<Timestamp>,
    /// Entries that were not as they were written, since the agent began.
    pub(super) differed: u64,
    /// Why the last comparison was given up.
    pub(super) error: Option<String>,
}

/// The next step.
enum Step {
    /// The tables' entries, some at a time.
    Tables(Comparison),
    /// Entries of nodes and exempted ports, with what differed the first time.
    Verdicts(Option<Differing>),
}

/// The comparison under way, and when its next step is due.
pub(super) struct Comparing {
    every: Duration,
    /// When the next step is due (CLOCK_MONOTONIC).
    next: Duration,
    going: Option<Step>,
    row: ComparedRow,
    inbox: Arc<Inbox>,
    beat: Arc<Beat>,
    world: Arc<Published>,
}

impl Comparing {
    /// The first comparison comes after one period: the first write itself compares all that the tables have.
    pub(super) fn new(every: Duration, inbox: Arc<Inbox>, beat: Arc<Beat>, world: Arc<Published>) -> Self {
        let next = now() + every;
        Self { every, next, going: None, row: ComparedRow::default(), inbox, beat, world }
    }

    /// How long until the next step is due.
    pub(super) fn pause(&self) -> Duration {
        self.next.saturating_sub(now())
    }

    /// Tables were written, or could not be.
    pub(super) const fn written(&mut self) {
        if let Some(Step::Tables(comparison)) = &mut self.going {
            comparison.changed();
        }
    }

    /// Does a step where one is due. Returns the row for `status` where that has changed.
    pub(super) fn go_on(&mut self, maps: &mut TableMaps, in_maps: &InMaps) -> Option<ComparedRow> {
        if now() < self.next {
            return None;
        }
        let before = self.row.clone();
        let begun = processor_time();
        let result = match self.going.take().unwrap_or_else(|| Step::Tables(Comparison::default())) {
            Step::Tables(comparison) => self.tables(comparison, maps, in_maps),
            Step::Verdicts(first) => self.verdicts(first, maps),
        };
        let rest = match result {
            Ok(rest) => rest,
            Err(error) => {
                tracing::warn!(
                    event = "compare-failed",
                    error,
                    "the maps could not be compared; the agent tries again"
                );
                self.row.error = Some(error);
                self.going = None;
                self.every
            }
        };
        let worked = processor_time().saturating_sub(begun);
        self.next = now() + rest.max(worked * REST);
        (self.row != before).then(|| self.row.clone())
    }

    /// Returns how long the pause is at least.
    fn tables(
        &mut self,
        mut comparison: Comparison,
        maps: &mut TableMaps,
        in_maps: &InMaps,
    ) -> Result<Duration, String> {
        // A write failed. The next write compares all that the tables have.
        let Some((tables, left_out)) = in_maps.tables() else { return Ok(LOOK_AGAIN) };
        let before = comparison.mended();
        let over = comparison.go_on(maps, tables, left_out);
        self.row.differed += comparison.mended() - before;
        self.going = Some(if over.map_err(chain)? { Step::Verdicts(None) } else { Step::Tables(comparison) });
        Ok(Duration::ZERO)
    }

    fn verdicts(&mut self, first: Option<Differing>, maps: &TableMaps) -> Result<Duration, String> {
        let world = Arc::clone(&self.world.now().held);
        let is_there = self.beat.done() >= world.number;
        let nodes = maps.nodes().map_err(chain)?;
        let exempt = maps.exempt().map_err(chain)?;
        if !is_there || self.world.now().held.number != world.number {
            // The snapshot was not written as a whole yet, or there is a newer one.
            self.going = Some(Step::Verdicts(first));
            return Ok(LOOK_AGAIN);
        }
        let mut differing = world.differing(&nodes, &exempt, monotonic_ns());
        match first {
            Some(first) => differing = differing.both(&first),
            None if differing.is_empty() => {}
            None => {
                self.going = Some(Step::Verdicts(Some(differing)));
                return Ok(LOOK_AGAIN);
            }
        }
        if !differing.is_empty() {
            tracing::warn!(
                event = "verdicts-differed",
                nodes = ?differing.nodes,
                ports = ?differing.ports,
                "verdicts were not as they were written; the agent writes them again"
            );
            self.row.differed += differing.len() as u64;
            self.inbox.tell(found(nodes, exempt));
        }
        self.row.times += 1;
        self.row.last = Some(Timestamp::now());
        self.row.error = None;
        Ok(self.every)
    }
}

/// Entries that `verdicts` is to compare with what it wrote.
fn found(nodes: Vec<NodeEntry>, exempt: Vec<(PortKey, u32)>) -> Input {
    let nodes = (0..).zip(nodes).filter(|(_, entry)| entry.generation != 0).collect();
    Input::Found { nodes, exempt, whole: true }
}

fn now() -> Duration {
    Duration::from_nanos(monotonic_ns())
}
