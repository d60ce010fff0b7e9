//! All names that nodefence gives to objects in the kernel.
use std::path::{Path, PathBuf};

/// The pinned maps of the object. Each pin has its map's name.
pub(super) const MAPS: [&str; 14] = [
    BACKENDS,
    PORTS,
    NODES,
    COUNTERS,
    EVENTS,
    CONFIG,
    LIMITS,
    ICMP_BUDGET,
    ANSWER_BUDGET,
    ICMP_SENDERS,
    DEVICES,
    MACS,
    ROUTE_VLANS,
    LEASE,
];
pub(super) const BACKENDS: &str = "backends";
pub(super) const PORTS: &str = "ports";
pub(super) const NODES: &str = "nodes";
pub(super) const COUNTERS: &str = "counters";
pub(super) const EVENTS: &str = "events";
pub(super) const CONFIG: &str = "config";
pub(super) const LIMITS: &str = "limits";
pub(super) const ICMP_BUDGET: &str = "icmp_budget";
pub(super) const ANSWER_BUDGET: &str = "answer_budget";
pub(super) const ICMP_SENDERS: &str = "icmp_senders";
pub(super) const DEVICES: &str = "devices";
pub(super) const MACS: &str = "macs";
pub(super) const ROUTE_VLANS: &str = "route_vlans";
pub(super) const LEASE: &str = "lease";

/// The maps that are not pinned: each agent has its own.
pub(super) const RESCUE: &str = "rescue";
pub(super) const RESCUE_UNTIL: &str = "rescue_until";
pub(super) const RESCUE_BUDGET: &str = "rescue_budget";

pub(super) const INJECT: &str = "nf_inject";
pub(super) const XDP: &str = "nf_xdp";

/// A place on a device where a program of ours sits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Hook {
    Egress,
    /// Agents that pinned `v1` attached there. This version only detaches there.
    Ingress,
    Xdp,
}

impl Hook {
    pub(super) const ALL: [Self; 3] = [Self::Egress, Self::Ingress, Self::Xdp];
    pub(super) const TC: [Self; 2] = [Self::Egress, Self::Ingress];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
            Self::Xdp => "xdp",
        }
    }
}

/// The folder of pinned links. A pin is named by the interface's index: the name of an interface may change, and may have a dot, which the
/// BPF filesystem reserves (bpf_lookup, kernel/bpf/inode.c).
pub(super) fn links(pin_dir: &Path) -> PathBuf {
    pin_dir.join("links")
}

pub(super) fn link(pin_dir: &Path, ifindex: u32, hook: Hook) -> PathBuf {
    links(pin_dir).join(format!("{ifindex}_{}", hook.name()))
}

/// The device and hook that a link's pin names.
pub(super) fn parse_link(file_name: &str) -> Option<(u32, Hook)> {
    let (ifindex, hook) = file_name.split_once('_')?;
    let hook = Hook::ALL.into_iter().find(|known| known.name() == hook)?;
    Some((ifindex.parse().ok()?, hook))
}

/// The folder that has an empty folder for each device whose clsact qdisc we made. The BPF filesystem has no plain files.
pub(super) fn qdiscs(pin_dir: &Path) -> PathBuf {
    pin_dir.join("qdiscs")
}

pub(super) fn qdisc(pin_dir: &Path, ifindex: u32) -> PathBuf {
    qdiscs(pin_dir).join(ifindex.to_string())
}

/// The folder in which maps of another size wait until every device runs the programs that use them.
pub(super) fn staging(pin_dir: &Path) -> PathBuf {
    pin_dir.join("staging")
}

/// The first part of the name of our clsact filters, which `tc filter show` prints.
pub(super) const FILTER_PREFIX: &str = "nodefence:";
/// The handle of all our clsact filters.
pub(super) const FILTER_HANDLE: u32 = 0x6e66;
/// The priority of our clsact filters, unless others have a filter of another kind or protocol there.
pub(super) const FILTER_PRIORITY: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_pin_names_its_device_and_hook() {
        for hook in Hook::ALL {
            let path = link(Path::new("/p"), 12, hook);
            let name = path.file_name().and_then(|name| name.to_str()).unwrap();
            assert_eq!(parse_link(name), Some((12, hook)));
        }
        for other in ["12", "egress", "x_egress", "12_other", "_egress", "12_egress_"] {
            assert_eq!(parse_link(other), None, "{other}");
        }
    }
}
