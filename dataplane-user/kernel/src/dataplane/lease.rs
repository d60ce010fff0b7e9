//! The time up to which the agent's drain of IPVS holds: one word in the pinned map `lease`. The writer of verdicts renews it
//! ([`super::NodeWriter::prolong`]). The thread that drains IPVS and the guard read it.
use std::path::Path;

use aya::maps::{Array, MapData};

use super::{names, node_writer::open};

/// The lease below `pin_dir` at this moment (CLOCK_MONOTONIC, in ns). 0 if there is no lease, or if it cannot be read. The map is opened by
/// its path each time: a process that has an old map open would not see that the map was removed, or that another agent has a map of its
/// own.
pub fn lease(pin_dir: &Path) -> u64 {
    open::<Array<MapData, u64>>(pin_dir, names::LEASE).ok().and_then(|map| map.get(&0, 0).ok()).unwrap_or(0)
}
