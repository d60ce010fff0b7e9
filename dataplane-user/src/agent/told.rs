//! Rows of `status`: each is written by one owner, and read by whoever asks.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{store::Writing, tables::TablesRow};
use crate::{
    report::{ConflictRow, InterfaceRow, NeighbourRow, PodRow, ReadingRow},
    source::OrdersRow,
};

/// The state of the source of views.
#[derive(Clone, Default)]
pub(super) struct SourceRow {
    /// The file, where the source is one.
    pub(super) file: Option<PathBuf>,
    /// Why the source's latest state was not taken.
    pub(super) error: Option<String>,
    /// Why the source does not answer now.
    pub(super) away: Option<String>,
    /// Parts of the view are what an earlier agent stored; the part of their age that lies before the boot of the machine.
    pub(super) stored: Option<Duration>,
    /// Inconsistent objects that were left out: how many, and the first few.
    pub(super) conflicts: usize,
    pub(super) conflict_examples: Vec<ConflictRow>,
    /// Endpoints that were left out as in any sound cluster: how many, and the first few.
    pub(super) skipped: usize,
    pub(super) skipped_examples: Vec<ConflictRow>,
    /// When (CLOCK_BOOTTIME) the source last confirmed the view that holds.
    pub(super) confirmed: Duration,
    /// Why the file's folder is not watched.
    pub(super) unwatched: Option<String>,
    /// The cost of reading the source since the agent began to follow it.
    pub(super) reading: ReadingRow,
}

impl SourceRow {
    /// Whether the source may know more than the view has.
    pub(super) fn is_away(&self) -> bool {
        self.away.is_some() || self.stored.is_some()
    }
}

/// Devices as last looked at.
#[derive(Clone, Default)]
pub(super) struct RoutesRow {
    /// The devices that are attached, or are wanted.
    pub(super) interfaces: Vec<InterfaceRow>,
    /// How many backends no attached device covers.
    pub(super) uncovered: usize,
    /// Why the last look failed; the other fields are of the look before.
    pub(super) error: Option<String>,
}

/// The reading ends of the rows.
pub(super) struct Rows {
    pub(super) source: watch::Receiver<SourceRow>,
    /// The pod that the agent runs in.
    pub(super) pod: Option<PodRow>,
    /// What the API server says of flags and settings; `None` where the source is another.
    pub(super) orders: Option<watch::Receiver<OrdersRow>>,
    pub(super) tables: watch::Receiver<TablesRow>,
    /// The problem with the flags file.
    pub(super) flags_problem: watch::Receiver<Option<String>>,
    /// Whether the flags file is being written.
    pub(super) writing: Arc<Writing>,
    pub(super) routes: watch::Receiver<RoutesRow>,
    /// The neighbour entries of flagged nodes.
    pub(super) neighbours: watch::Receiver<Vec<NeighbourRow>>,
}
