//! The time up to which the agent's drain of IPVS holds: one word in a pinned map (`lease`). Whoever renews verdicts renews it
//! ([`super::NodeWriter::prolong`]); the thread that works on IPVS and its guard read it.
use std::path::Path;

use aya::maps::{Array, MapData};

use super::{names, node_writer::open};

/// The lease below `pin_dir` at this moment (CLOCK_MONOTONIC, in ns); 0 where it is not there or cannot be read. It is opened by its path:
/// a process that has an old map open would not see that the map was removed, or that another agent has one of its own.
pub fn lease(pin_dir: &Path) -> u64 {
    open::<Array<MapData, u64>>(pin_dir, names::LEASE).ok().and_then(|map| map.get(&0, 0).ok()).unwrap_or(0)
}
