//! Attaches to TC: by tcx if the kernel has it, otherwise by clsact. Attaches before it detaches, replaces in place, and leaves the
//! programs of others alone.
use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use super::{
    clsact, error::Error, links, names::Hook, netlink::Netlink, options::TcChoice, programs::Program, sys,
};

/// How the TC programs of a device are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TcMode {
    /// As tcx links (Linux 6.6 and later).
    Tcx,
    /// As filters on a clsact qdisc.
    Clsact,
}

impl fmt::Display for TcMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

/// Whether the error is that of a kernel without tcx. Such a kernel does not know the attach type, or was built without CONFIG_NET_XGRESS
/// (include/net/tcx.h).
fn no_tcx(error: &io::Error) -> bool {
    const ENOTSUPP: i32 = 524;
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | ENOTSUPP | libc::E2BIG))
}

/// Makes sure that `program` runs on a device's egress, attached as chosen. Returns how it is attached. A program that is attached in this
/// way already is replaced in place. A program that is attached in the other way is removed only after the new one runs.
pub(super) fn ensure(
    netlink: &mut Netlink,
    pin_dir: &Path,
    ifindex: u32,
    program: &Program,
    choice: TcChoice,
) -> Result<TcMode, Error> {
    let hook = Hook::Egress;
    let pinned = links::open(pin_dir, ifindex, hook)?;
    if choice == TcChoice::Auto {
        // The link may be that of a device with this index in another network namespace. Then its program is not among the programs of the
        // device here.
        let here = |program| sys::query_tcx(ifindex).is_ok_and(|programs| programs.contains(&program));
        let elsewhere = pinned.as_ref().is_some_and(|link| !here(link.info.program));
        if elsewhere {
            links::remove(pin_dir, ifindex, hook)?;
        }
        if let Some(link) = pinned.filter(|_| !elsewhere) {
            if link.info.program != program.id {
                let what = || format!("replace the {} program of interface {ifindex}", hook.name());
                link.update(program.fd.as_fd()).map_err(|error| Error::call(what())(error))?;
            }
            // A crash may have left a filter beside the link. Its program would go on with maps that nobody writes any more.
            clsact::remove(netlink, ifindex, hook)?;
            return Ok(TcMode::Tcx);
        }
        match create(program.fd.as_fd(), ifindex) {
            Ok(link) => {
                links::pin(pin_dir, ifindex, hook, &link)?;
                clsact::remove(netlink, ifindex, hook)?;
                return Ok(TcMode::Tcx);
            }
            Err(e) if no_tcx(&e) => {}
            Err(e) => {
                return Err(Error::call(format!("attach to the {} of interface {ifindex}", hook.name()))(e));
            }
        }
    }
    clsact::ensure(netlink, pin_dir, ifindex, hook, (program.fd.as_fd(), program.id, program.name))?;
    links::remove(pin_dir, ifindex, hook)?;
    Ok(TcMode::Clsact)
}

fn create(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<std::os::fd::OwnedFd> {
    sys::link_create(program, ifindex, sys::BPF_TCX_EGRESS, sys::BPF_F_BEFORE)
}
