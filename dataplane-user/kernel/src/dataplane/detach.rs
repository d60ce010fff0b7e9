//! Removing all that is ours, with or without an agent, after a crash, and as often as one likes.
use std::{fs, path::Path};

use super::{
    clsact, error::Error, exposed, folders, links, lock::PinLock, names::Hook, netlink::Netlink, versions,
};

/// What `detach` removed from the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, schemars::JsonSchema)]
pub struct DetachReport {
    /// The number of tcx and XDP links.
    pub links: u32,
    /// The number of clsact filters.
    pub filters: u32,
    /// The number of clsact qdiscs. Only empty ones that an agent made are removed.
    pub qdiscs: u32,
    /// The number of pinned maps.
    pub maps: u32,
}

/// Removes every link, filter, qdisc and pin of ours in this network namespace, below `pin_dir` and below the folders of
/// other versions beside it. Nothing of others is
/// touched: a clsact qdisc goes only where we made it and nobody else uses it.
///
/// # Errors
///
/// [`Error::Busy`] where a [`super::Dataplane`] is open on the folder: nothing is removed below a running agent. [`Error::Exposed`] where
/// somebody else could have it remove what is theirs to choose.
pub fn detach(pin_dir: &Path) -> Result<DetachReport, Error> {
    let root = folders::root(pin_dir)?;
    exposed::refuse(pin_dir)?;
    let _lock = PinLock::existing(root)?;
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
    if folders::in_bpffs(pin_dir)? {
        for dir in &dirs {
            report.maps += folders::remove_pins(dir)?;
        }
        // Where it is not empty, something in it is not ours.
        let _ = fs::remove_dir(root);
    }
    Ok(report)
}
