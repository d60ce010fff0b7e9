//! Numbers below `/proc/sys`, as the calling thread's namespaces see them.

use std::{fs, path::Path};

/// The value of a sysctl, by its path (`net/ipv4/vs/conntrack`); `None` where there is none, or no number in it.
pub fn number(path: &str) -> Option<u64> {
    fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}
