//! Reads numbers below `/proc/sys`, as the calling thread's namespaces see them.

use std::{fs, path::Path};

/// The value of a sysctl, by its path (`net/ipv4/vs/conntrack`). `None` if there is no such sysctl, or its value is not a number.
pub fn number(path: &str) -> Option<u64> {
    fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}
