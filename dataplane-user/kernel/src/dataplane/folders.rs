//! The pin folder: where it must lie, how it is made, and how it is removed with its pins.
use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nodefence_common::PIN_ROOT;

use super::{error::Error, names};

/// The folder above the versions' pin folders, which is locked.
pub(super) fn root(pin_dir: &Path) -> Result<&Path, Error> {
    // A detach removes everything below this folder. A mistyped path must not hit the pins of others.
    pin_dir.parent().filter(|root| root.ends_with(PIN_ROOT)).ok_or_else(|| Error::NotOurs(pin_dir.to_owned()))
}

/// Makes the pin folder and the folders in it that are missing.
pub(super) fn make_folders(pin_dir: &Path) -> Result<(), Error> {
    for dir in [pin_dir.to_owned(), names::links(pin_dir), names::qdiscs(pin_dir)] {
        make(&dir).map_err(Error::file(dir, "make the folder"))?;
    }
    Ok(())
}

/// Makes a folder and the missing folders above it. Only this process' user can use them ([`super::exposed`]).
pub(super) fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Whether a path lies in a BPF filesystem, or would lie there once its folders were made.
///
/// # Errors
/// Fails if the filesystem cannot be queried.
pub fn in_bpffs(path: &Path) -> Result<bool, Error> {
    for ancestor in path.ancestors() {
        match statfs(ancestor) {
            Ok(fs) => return Ok(fs.filesystem_type() == BPF_FS_MAGIC),
            Err(nix::Error::ENOENT) => {}
            Err(e) => return Err(Error::file(ancestor, "query the filesystem")(e.into())),
        }
    }
    Ok(false)
}

/// Makes an attempt to remove or rename a file succeed if the file is gone already. Returns whether the file was there.
pub(super) fn gone(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes a folder of pins with the pins in it. Returns how many pins there were.
pub(super) fn remove_pins(dir: &Path) -> Result<u32, Error> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other.map_err(Error::file(dir, "list it"))?,
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            removed += remove_pins(&path)?;
        } else if gone(fs::remove_file(&path)).map_err(Error::file(path, "remove the pin"))? {
            removed += 1;
        }
    }
    gone(fs::remove_dir(dir)).map_err(Error::file(dir, "remove the folder"))?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_yet_counts_as_its_parent() {
        assert!(!in_bpffs(Path::new("/proc/nodefence/v3")).unwrap());
        assert!(!in_bpffs(Path::new("/nowhere/nodefence/v3")).unwrap());
    }
}
