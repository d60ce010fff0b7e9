//! Pinned links. A pin in the pin folder keeps a program attached while no agent runs.
use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use super::{
    error::Error,
    names::{self, Hook},
    sys::{self, LinkInfo},
};

/// A pinned link of ours.
pub(super) struct Pinned {
    fd: OwnedFd,
    pub(super) info: LinkInfo,
}

impl Pinned {
    /// Makes the link run `program` from the next packet on.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        sys::link_update(self.fd.as_fd(), program)
    }
}

/// Every device and hook that has a pinned link.
pub(super) fn list(pin_dir: &Path) -> Result<Vec<(u32, Hook)>, Error> {
    let dir = names::links(pin_dir);
    let entries = match fs::read_dir(&dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::file(&dir, "list it"))?,
    };
    Ok(entries.flatten().filter_map(|entry| names::parse_link(entry.file_name().to_str()?)).collect())
}

/// The pinned link of a device's hook, if it is still attached there. Removes the pin if the device is gone.
pub(super) fn open(pin_dir: &Path, ifindex: u32, hook: Hook) -> Result<Option<Pinned>, Error> {
    let path = names::link(pin_dir, ifindex, hook);
    let fd = match sys::get(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(Error::file(&path, "open the pinned link"))?,
    };
    let kind = if hook == Hook::Xdp { sys::LINK_XDP } else { sys::LINK_TCX };
    let info = sys::link_info(fd.as_fd()).map_err(Error::file(&path, "query the pinned link"))?;
    if info.kind == kind && info.ifindex == ifindex {
        return Ok(Some(Pinned { fd, info }));
    }
    fs::remove_file(&path).map_err(Error::file(path, "remove the pin of a link whose interface is gone"))?;
    Ok(None)
}

/// Pins a new link. After a failure the caller drops the link, which detaches the program.
pub(super) fn pin(pin_dir: &Path, ifindex: u32, hook: Hook, link: &OwnedFd) -> Result<(), Error> {
    let path = names::link(pin_dir, ifindex, hook);
    sys::pin(link.as_fd(), &path).map_err(Error::file(path, "pin a link"))
}

/// Detaches a link and removes its pin. Returns whether there was one.
pub(super) fn remove(pin_dir: &Path, ifindex: u32, hook: Hook) -> Result<bool, Error> {
    let path = names::link(pin_dir, ifindex, hook);
    match sys::get(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        // The link cannot be opened. The removal of its pin detaches it a little later.
        Err(_) => {}
        Ok(fd) => {
            // The device may be gone, and the link with it.
            let _ = sys::link_detach(fd.as_fd());
        }
    }
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::file(path, "remove a link's pin")(e)),
    }
}
