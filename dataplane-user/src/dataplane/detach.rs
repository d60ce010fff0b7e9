//! Removing all that is ours, with or without an agent, after a crash, and as often as one likes.
use std::{fs, path::Path};

use super::{
    clsact,
    error::Error,
    links, load,
    names::{self, Hook},
    netlink::Netlink,
};

/// What a detach removed.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct DetachReport {
    /// tcx and XDP links.
    pub links: u32,
    /// clsact filters.
    pub filters: u32,
    /// clsact qdiscs that we had made and that were empty.
    pub qdiscs: u32,
    /// Pinned maps.
    pub maps: u32,
}

/// Removes every link, filter, qdisc and pin of ours in this network namespace and below `pin_dir`. Nothing of others is
/// touched: a clsact qdisc goes only where we made it and nobody else uses it.
pub fn detach(pin_dir: &Path) -> Result<DetachReport, Error> {
    let mut report = DetachReport::default();
    for (ifindex, hook) in links::list(pin_dir)? {
        report.links += u32::from(links::remove(pin_dir, ifindex, hook)?);
    }
    let mut netlink = Netlink::open()?;
    for ifindex in clsact::devices(&mut netlink)? {
        for hook in Hook::TC {
            report.filters += u32::from(clsact::remove(&mut netlink, ifindex, hook)?);
        }
        report.qdiscs += u32::from(clsact::remove_qdisc(&mut netlink, pin_dir, ifindex)?);
    }
    if load::in_bpffs(pin_dir)? {
        report.maps = load::remove_pins(pin_dir)?;
        // The folder above is shared by versions; it stays where it is not empty.
        if let Some(root) = pin_dir.parent().filter(|p| p.ends_with(names::root())) {
            let _ = fs::remove_dir(root);
        }
    }
    Ok(report)
}
