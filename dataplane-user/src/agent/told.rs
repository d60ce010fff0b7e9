//! Rows of `status`: each is written by one owner, and read by whoever asks.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{store::Writing, tables::TablesRow};
use crate::report::{ConflictRow, InterfaceRow, NeighbourRow, ReadingRow};

/// What becomes of the source of views.
#[derive(Clone, Default)]
pub(super) struct SourceRow {
    /// The file, where it is one.
    pub(super) file: Option<PathBuf>,
    /// Why what it says now was not taken.
    pub(super) error: Option<String>,
    /// What is inconsistent about its objects and was left out: how much, and the first few.
    pub(super) conflicts: usize,
    pub(super) conflict_examples: Vec<ConflictRow>,
    /// When (CLOCK_BOOTTIME) it last said that it is as it was when the view that holds was taken of it.
    pub(super) confirmed: Duration,
    /// Why the file's folder is not watched.
    pub(super) unwatched: Option<String>,
    /// What reading it has cost since the agent began to follow it.
    pub(super) reading: ReadingRow,
}

/// Devices as last looked at.
#[derive(Clone, Default)]
pub(super) struct RoutesRow {
    /// Those that we are attached to, or want to be.
    pub(super) interfaces: Vec<InterfaceRow>,
    /// How many backends none of them covers.
    pub(super) uncovered: usize,
    /// Why the last look failed; the rest is of the one before.
    pub(super) error: Option<String>,
}

/// Their ends for reading.
pub(super) struct Rows {
    pub(super) source: watch::Receiver<SourceRow>,
    pub(super) tables: watch::Receiver<TablesRow>,
    /// What is wrong with the flags file.
    pub(super) flags_problem: watch::Receiver<Option<String>>,
    /// Whether it is being written.
    pub(super) writing: Arc<Writing>,
    pub(super) routes: watch::Receiver<RoutesRow>,
    /// What is done about the neighbour entries of flagged nodes.
    pub(super) neighbours: watch::Receiver<Vec<NeighbourRow>>,
}
