use std::path::Path;

use crate::{dataplane, flags::monotonic_ns};

/// Whether what was drained from IPVS holds at this moment, by the lease below `pin_dir`.
pub fn holds(pin_dir: &Path) -> bool {
    dataplane::lease(pin_dir) > monotonic_ns()
}
