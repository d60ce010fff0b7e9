//! Locks that others can look for without taking them: those of open file descriptions (fcntl_locking(2), Linux 3.15). They concern other open files of the
//! same process too, and the kernel gives them back when the process ends in any way.

use std::fs::File;

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

/// A lock of this kind on the whole file.
fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Locks a file that this process may read, beside others that lock it so.
pub(super) fn share(file: &File) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_RDLCK))).map(drop)
}

/// Locks a file that this process may write, alone.
pub(super) fn own(file: &File) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))).map(drop)
}

/// Whether somebody has locked the file in either way, through another open file than this one.
pub(super) fn is_locked(file: &File) -> Result<bool, Errno> {
    let mut lock = whole(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
