//! Every name that this room gives to something in the kernel.
use std::path::{Path, PathBuf};

/// The pinned maps of the object, each under its name.
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

/// The maps that are not pinned: one agent's alone.
pub(super) const RESCUE: &str = "rescue";
pub(super) const RESCUE_UNTIL: &str = "rescue_until";
pub(super) const RESCUE_BUDGET: &str = "rescue_budget";

pub(super) const INJECT: &str = "nf_inject";
pub(super) const XDP: &str = "nf_xdp";

/// A place on a device where a program of ours sits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Hook {
    Egress,
    /// Agents that pinned `v1` attached there. It is only detached.
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

/// Pins of links. Named by interface index: a device's name may hold a dot, which the BPF filesystem keeps for itself
/// (kernel/bpf/inode.c, bpf_lookup), and may change.
pub(super) fn links(pin_dir: &Path) -> PathBuf {
    pin_dir.join("links")
}

pub(super) fn link(pin_dir: &Path, ifindex: u32, hook: Hook) -> PathBuf {
    links(pin_dir).join(format!("{ifindex}_{}", hook.name()))
}

/// The device and hook that a link's pin names.
pub(super) fn parse_link(file_name: &str) -> Option<(u32, Hook)> {
    let (ifindex, hook) = file_name.split_once('_')?;
    let hook = Hook::ALL.into_iter().find(|h| h.name() == hook)?;
    Some((ifindex.parse().ok()?, hook))
}

/// One empty folder per device whose clsact qdisc we made; the BPF filesystem holds no plain files.
pub(super) fn qdiscs(pin_dir: &Path) -> PathBuf {
    pin_dir.join("qdiscs")
}

pub(super) fn qdisc(pin_dir: &Path, ifindex: u32) -> PathBuf {
    qdiscs(pin_dir).join(ifindex.to_string())
}

/// Where maps of another size or layout wait until every device runs the programs that use them.
pub(super) fn staging(pin_dir: &Path) -> PathBuf {
    pin_dir.join("staging")
}

/// First part of the name of our clsact filters (`tc filter show` prints it), and the handle they all have.
pub(super) const FILTER_PREFIX: &str = "nodefence:";
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
            let name = path.file_name().and_then(|n| n.to_str()).unwrap();
            assert_eq!(parse_link(name), Some((12, hook)));
        }
        for other in ["12", "egress", "x_egress", "12_other", "_egress", "12_egress_"] {
            assert_eq!(parse_link(other), None, "{other}");
        }
    }
}
