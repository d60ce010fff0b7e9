//! Up to when what the agent drained from IPVS holds: one word in a pinned map (`lease`). Whoever renews verdicts renews it
//! ([`super::NodeWriter::prolong`]); who works on IPVS and the guard of that read it.
use std::path::Path;

use aya::maps::{Array, MapData};

use super::{names, node_writer::open};

/// What it says below `pin_dir` at this moment (CLOCK_MONOTONIC, in ns); 0 where it is not there or cannot be read. By its path: whoever has an old map open
/// would not see that it was removed, or that another agent has one of its own.
pub fn lease(pin_dir: &Path) -> u64 {
    open::<Array<MapData, u64>>(pin_dir, names::LEASE).ok().and_then(|map| map.get(&0, 0).ok()).unwrap_or(0)
}
