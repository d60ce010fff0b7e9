//! Folders of other versions beside our pin folder. Another version means other map layouts ([`nodefence_common::PIN_VERSION`]):
//! its links are taken over and run our programs once our maps are filled; its maps go afterwards.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nodefence_common::PIN_ROOT;

use super::{error::Error, folders, links, names};

/// The pin folders of other versions.
pub(super) fn others(pin_dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let Some(root) = pin_dir.parent().filter(|root| root.ends_with(PIN_ROOT)) else { return Ok(Vec::new()) };
    let entries = match fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::file(root, "list it"))?,
    };
    let is_version = |path: &PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let number = name.strip_prefix('v').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && path != pin_dir
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_version).collect())
}

/// Moves the links and the marks of another version's folder into ours, and says whether there was anything that may
/// still run its programs. A link of a hook for which we have one is removed.
pub(super) fn take_over(pin_dir: &Path, other: &Path) -> Result<bool, Error> {
    let mut taken = false;
    for (ifindex, hook) in links::list(other)? {
        let to = names::link(pin_dir, ifindex, hook);
        if to.exists() {
            links::remove(other, ifindex, hook)?;
        } else {
            let from = names::link(other, ifindex, hook);
            fs::rename(&from, to).map_err(Error::file(from, "take over the other version's link"))?;
        }
        taken = true;
    }
    let marks = match fs::read_dir(names::qdiscs(other)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(taken),
        marks => marks.map_err(Error::file(names::qdiscs(other), "list it"))?,
    };
    for mark in marks.flatten() {
        let to = names::qdiscs(pin_dir).join(mark.file_name());
        match fs::create_dir(&to) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::file(to, "remember that the clsact qdisc is ours")(e));
            }
            _ => taken = true,
        }
        // Only now: a crash in between leaves two marks, not none.
        folders::gone(fs::remove_dir(mark.path())).map_err(Error::file(mark.path(), "remove it"))?;
    }
    Ok(taken)
}
