//! Detaches what another version of the agent has pinned beside our pin folder, and what had another layout in our pin folder. Only that
//! version's programs know what its values mean ([`nodefence_common::PIN_VERSION`]), so none of its verdicts is adopted. Its programs and
//! pins are removed once our programs are attached.
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

/// The folder to which the content of our pin folder is moved if it has another layout. No version has this number.
const ASIDE: &str = "v0";

/// What another version has pinned.
pub(super) struct Other {
    folder: PathBuf,
    /// Why it could not be detached, as the log already says.
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
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix('v').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && path != pin_dir
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_version).collect())
}

impl Other {
    /// What lies in this folder.
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self { folder, error: None }
    }

    /// Detaches it, and logs that. Returns whether it is detached. Each look tries this again, and logs the same failure only once.
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

/// Moves our pin folder, whose maps have another layout, to [`ASIDE`]. From then on it is treated as another version's.
pub(super) fn put_aside(pin_dir: &Path) -> Result<(), Error> {
    let aside = pin_dir.with_file_name(ASIDE);
    // An agent that ended before it attached anything may have left this folder.
    folders::remove_pins(&aside)?;
    fs::rename(pin_dir, aside).map_err(Error::file(pin_dir, "put it aside"))?;
    folders::make_folders(pin_dir)
}

/// Detaches what another version attached by links, and removes its pins. Its clsact filters at egress were replaced by ours, or are gone.
/// Its clsact filters at ingress, where this version has none, are removed. Its qdiscs become ours.
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
