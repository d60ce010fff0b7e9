//! What agents left in the kernel of a namespace.

use anyhow::Result;
use aya::programs::{SchedClassifier, TcAttachType};

use crate::Netns;

/// Everything of ours in the kernel: programs on devices, and pins.
///
/// # Errors
/// Fails if it cannot be listed.
pub fn left(ns: &Netns) -> Result<Vec<String>> {
    let mut left = programs(ns)?;
    let pins = ns.exec("find /sys/fs/bpf -path */nodefence*")?;
    left.extend(pins.lines().map(str::to_owned));
    Ok(left)
}

/// Our programs on devices.
///
/// # Errors
/// Fails if they cannot be listed.
pub fn programs(ns: &Netns) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    for line in ns.exec("ls /sys/class/net")?.split_whitespace() {
        let device = line.to_owned();
        let filters = ns.exec(&format!("tc filter show dev {device} egress"))?;
        found.extend(filters.lines().filter(|line| line.contains("nodefence")).map(str::to_owned));
        // Kernels without tcx have no such list.
        let programs =
            ns.run(move || match SchedClassifier::query_tcx(index(&device), TcAttachType::Egress) {
                Ok((_, programs)) => programs.len(),
                Err(_) => 0,
            });
        found.extend((0..programs).map(|_| format!("a tcx program on {line}")));
    }
    Ok(found)
}

fn index(device: &str) -> u32 {
    nix::net::if_::if_nametoindex(device).unwrap_or_default()
}
