//! What was measured.

use std::{collections::BTreeMap, time::Duration};

use super::client::{Spent, Who};

/// What was measured of a client, or of nobody.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Time of each start, until all objects were there.
    pub(super) starts: Vec<Duration>,
    pub(super) lists: Vec<Spent>,
    pub(super) restarts: Vec<Spent>,
    pub(super) rest: Option<Spent>,
    /// Resident memory at rest, and its peak until then, in MiB.
    pub(super) memory: Option<[f64; 2]>,
}

/// What was measured of the agent when it had to list everything again.
#[derive(Debug)]
pub(super) struct Anew {
    pub(super) took: Duration,
    pub(super) from_server: u64,
    /// Resident memory some time after that, and its peak since the start, in MiB.
    pub(super) memory: [f64; 2],
}

/// Everything that was measured so far.
#[derive(Debug, Default)]
pub(super) struct All {
    /// How long nothing changed.
    pub(super) rest: Duration,
    pub(super) of: BTreeMap<Who, Measured>,
    pub(super) anew: Option<Anew>,
}
