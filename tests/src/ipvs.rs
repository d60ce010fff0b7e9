//! What `ipvsadm` says of a namespace's tables.

use anyhow::Result;

use crate::Netns;

/// Lines of `ipvsadm -Sn` (what `ipvsadm-save -n` prints), in order. Thresholds are not among them.
///
/// # Errors
/// Where `ipvsadm` fails.
pub fn saved(ns: &Netns) -> Result<Vec<String>> {
    let mut lines: Vec<String> = ns.exec("ipvsadm -Sn")?.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    Ok(lines)
}
