//! What another version of the agent has pinned beside our pin folder, or one of another layout in it. What its values mean is known to its programs alone
//! ([`nodefence_common::PIN_VERSION`]): none of its verdicts is adopted. It goes once ours is attached.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nodefence_common::PIN_ROOT;

use super::{
    clsact,
    error::Error,
    folders, links,
    names::{self, Hook},
    netlink::Netlink,
};

/// The folder that takes what lay in ours with another layout: no version has this number.
const ASIDE: &str = "v0";

/// What another version has pinned.
pub(super) struct Other {
    folder: PathBuf,
    /// Why it could not be detached, as the log has it already.
    error: Option<String>,
}

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

impl Other {
    /// What lies in this folder.
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self { folder, error: None }
    }

    /// Detaches it, and says so; whether that is done. Each look tries it, so that the log has a failure once.
    pub(super) fn detach(&mut self, pin_dir: &Path) -> bool {
        let folder = self.folder.display();
        let Err(error) = detach(pin_dir, &self.folder) else {
            tracing::warn!(
                event = "old-version-detached",
                %folder,
                "what an agent of another version or layout had pinned was detached; none of its verdicts were adopted: \
                 flagged nodes got traffic until they were cut anew"
            );
            return true;
        };
        let text = error.to_string();
        if self.error.as_ref() != Some(&text) {
            tracing::error!(
                event = "old-version-not-detached",
                %folder,
                %error,
                "what an agent of another version or layout had pinned cannot be detached yet"
            );
            self.error = Some(text);
        }
        false
    }
}

/// Puts our pin folder aside, whose maps have another layout: from then on it is another version's.
pub(super) fn put_aside(pin_dir: &Path) -> Result<(), Error> {
    let aside = pin_dir.with_file_name(ASIDE);
    // Of an agent that ended before it was attached.
    folders::remove_pins(&aside)?;
    fs::rename(pin_dir, aside).map_err(Error::file(pin_dir, "put it aside"))?;
    folders::make_folders(pin_dir)
}

/// Detaches what another version attached by links, and removes its pins. Its clsact filters are ours by now, or gone, but for those at ingress, where nothing of this
/// version sits; so are its qdiscs.
fn detach(pin_dir: &Path, other: &Path) -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    for ifindex in clsact::devices(&mut netlink)? {
        clsact::remove(&mut netlink, ifindex, Hook::Ingress)?;
    }
    for (ifindex, hook) in links::list(other)? {
        links::remove(other, ifindex, hook)?;
    }
    let marks = match fs::read_dir(names::qdiscs(other)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        marks => Some(marks.map_err(Error::file(names::qdiscs(other), "list it"))?),
    };
    for mark in marks.into_iter().flatten().flatten() {
        let to = names::qdiscs(pin_dir).join(mark.file_name());
        folders::make(&to).map_err(Error::file(to, "remember that the clsact qdisc is ours"))?;
    }
    folders::remove_pins(other).map(drop)
}
