//! Removes everything that nodefence attached and pinned, also after a crash. May be repeated. Refused while an agent runs.
use std::{fs, path::Path};

use super::{
    clsact, error::Error, exposed, folders, links, lock::PinLock, names::Hook, netlink::Netlink, versions,
};

/// What `detach` removed from the kernel.
#[derive(
    Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
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

/// Removes every link, filter, qdisc and pin of nodefence in this network namespace: those below `pin_dir`, and those below the pin folders
/// of other versions beside it. Leaves what others made: a clsact qdisc is removed only if nodefence made it and it has no filter.
///
/// # Errors
/// [`Error::Busy`] if a [`super::Dataplane`] is open on the folder. Nothing is removed below a running agent. [`Error::Exposed`] if another
/// user could change the pins, and so choose what is removed.
pub fn detach(pin_dir: &Path) -> Result<DetachReport, Error> {
    exposed::refuse(pin_dir)?;
    let _lock = PinLock::existing(folders::root(pin_dir)?)?;
    remove(pin_dir)
}

/// As [`detach`], for the process that has the [`super::Dataplane`] open, once none of its threads attaches any more. Parts of the dataplane may
/// still be open: what they write goes to maps that no program reads.
///
/// # Errors
/// As of [`detach`], but never [`Error::Busy`].
pub fn detach_own(pin_dir: &Path) -> Result<DetachReport, Error> {
    exposed::refuse(pin_dir)?;
    remove(pin_dir)
}

fn remove(pin_dir: &Path) -> Result<DetachReport, Error> {
    let root = folders::root(pin_dir)?;
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
        // This fails if the folder contains something that is not ours.
        let _ = fs::remove_dir(root);
    }
    Ok(report)
}
