//! Removing all that is ours, with or without an agent, after a crash, and as often as one likes.
use std::{fs, path::Path};

use nodefence_common::PIN_ROOT;

use super::{clsact, error::Error, links, load, names::Hook, netlink::Netlink, versions};

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

/// Removes every link, filter, qdisc and pin of ours in this network namespace, below `pin_dir` and below the folders of
/// other versions beside it. Nothing of others is
/// touched: a clsact qdisc goes only where we made it and nobody else uses it.
pub fn detach(pin_dir: &Path) -> Result<DetachReport, Error> {
    // All below it is removed: a slip of the hand must not hit the pins of others.
    if !pin_dir.parent().is_some_and(|root| root.ends_with(PIN_ROOT)) {
        return Err(Error::NotOurs(pin_dir.to_owned()));
    }
    let mut report = DetachReport::default();
    let mut dirs = vec![pin_dir.to_owned()];
    dirs.extend(versions::others(pin_dir)?);
    for dir in &dirs {
        for (ifindex, hook) in links::list(dir)? {
            report.links += u32::from(links::remove(dir, ifindex, hook)?);
        }
    }
    let mut netlink = Netlink::open()?;
    for ifindex in clsact::devices(&mut netlink)? {
        for hook in Hook::TC {
            report.filters += u32::from(clsact::remove(&mut netlink, ifindex, hook)?);
        }
        for dir in &dirs {
            report.qdiscs += u32::from(clsact::remove_qdisc(&mut netlink, dir, ifindex)?);
        }
    }
    if load::in_bpffs(pin_dir)? {
        for dir in &dirs {
            report.maps += load::remove_pins(dir)?;
        }
        if let Some(root) = pin_dir.parent().filter(|root| root.ends_with(PIN_ROOT)) {
            // Where it is not empty, something in it is not ours.
            let _ = fs::remove_dir(root);
        }
    }
    Ok(report)
}
