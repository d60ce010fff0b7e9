//! Our filters on clsact qdiscs (kernels without tcx), over route netlink. aya can replace only filters that the same process made. This
//! code finds, replaces and removes our filters from any later process.
use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::{
    error::Error,
    folders,
    names::{self, FILTER_HANDLE, FILTER_PREFIX, FILTER_PRIORITY, Hook},
    netlink::{
        Netlink, RTM_DELQDISC, RTM_DELTFILTER, RTM_GETQDISC, RTM_GETTFILTER, RTM_NEWQDISC, RTM_NEWTFILTER,
        Request,
    },
};
use crate::netlink::{self, Refusal, attributes, text_of, u32_of};

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAGS_GEN: u16 = 9;
const TCA_BPF_ID: u16 = 11;
const DIRECT_ACTION: u32 = 1;
/// `TCA_CLS_FLAGS_SKIP_HW` and `TCA_CLS_FLAGS_SKIP_SW` (cls_bpf takes both since Linux 4.9).
const SKIP_HW: u32 = 1;
const SKIP_SW: u32 = 2;

const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const ETH_P_ALL: u16 = 3;
/// How many priorities are tried, if others have a filter of another kind or protocol at the first.
const PRIORITIES: u16 = 16;

/// One filter on a clsact hook. Filters run in the order in which the kernel lists them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Filter {
    pub(super) priority: u16,
    /// Network byte order, as in `tcm_info`.
    protocol: u16,
    handle: u32,
    chain: u32,
    /// `bpf`, `flower`, `u32`, ...
    pub(super) kind: String,
    /// The name of a BPF filter.
    pub(super) name: String,
    /// The program id of a BPF filter.
    pub(super) program: u32,
    /// The flags `SKIP_HW` and `SKIP_SW` of a BPF filter.
    skips: u32,
}

impl Filter {
    /// Whether the filter is ours: it has our handle, and a name with our prefix.
    pub(super) fn ours(&self) -> bool {
        self.handle == FILTER_HANDLE && self.name.starts_with(FILTER_PREFIX)
    }

    /// Whether packets reach the filter without a jump from another filter.
    pub(super) fn in_first_chain(&self) -> bool {
        self.chain == 0
    }
}

fn parent(hook: Hook) -> u32 {
    match hook {
        Hook::Egress => 0xffff_fff3,
        Hook::Ingress | Hook::Xdp => 0xffff_fff2,
    }
}

/// `struct tcmsg`.
fn tcmsg(ifindex: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    for (at, word) in [(4, ifindex), (8, handle), (12, parent), (16, info)] {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Devices that have a clsact qdisc.
pub(super) fn devices(netlink: &mut Netlink) -> Result<Vec<u32>, Error> {
    let answers = netlink
        .ask(&Request::list(RTM_GETQDISC, &tcmsg(0, 0, 0, 0)))
        .map_err(|refusal| refusal.into_error("list the qdiscs"))?;
    let is_clsact = |body: &&Vec<u8>| {
        body.get(20..).is_some_and(|rest| {
            attributes(rest).any(|(kind, value)| kind == TCA_KIND && text_of(value) == "clsact")
        })
    };
    Ok(answers.iter().filter(is_clsact).filter_map(|body| body.get(4..).and_then(u32_of)).collect())
}

/// All filters of a hook. Empty if the device or the qdisc does not exist.
pub(super) fn filters(netlink: &mut Netlink, ifindex: u32, hook: Hook) -> Result<Vec<Filter>, Error> {
    match netlink.ask(&Request::list(RTM_GETTFILTER, &tcmsg(ifindex, 0, parent(hook), 0))) {
        Ok(answers) => Ok(answers.iter().filter_map(|body| parse(body)).collect()),
        Err(e) if [libc::EINVAL, libc::ENOENT, libc::ENODEV].contains(&e.errno) => Ok(Vec::new()),
        Err(e) => Err(e.into_error(format!("list the {} filters of interface {ifindex}", hook.name()))),
    }
}

fn parse(body: &[u8]) -> Option<Filter> {
    let info = body.get(16..).and_then(u32_of)?;
    let mut filter = Filter {
        priority: (info >> 16) as u16,
        protocol: info as u16,
        handle: body.get(8..).and_then(u32_of)?,
        ..Filter::default()
    };
    let mut has_options = false;
    for (kind, value) in attributes(body.get(20..)?) {
        match kind {
            TCA_KIND => filter.kind = text_of(value),
            TCA_CHAIN => filter.chain = u32_of(value)?,
            TCA_OPTIONS => {
                has_options = true;
                if filter.kind == "bpf" {
                    for (kind, value) in attributes(value) {
                        match kind {
                            TCA_BPF_NAME => filter.name = text_of(value),
                            TCA_BPF_ID => filter.program = u32_of(value)?,
                            TCA_BPF_FLAGS_GEN => filter.skips = u32_of(value)? & (SKIP_HW | SKIP_SW),
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    // The kernel also lists the classifier itself, without handle and options.
    (has_options || filter.handle != 0).then_some(filter)
}

/// Makes sure that our filter is on the hook and runs this program. If the filter exists, its program is replaced: one packet still runs
/// the old program, and the next runs the new one (cls_bpf_change, net/sched/cls_bpf.c). Otherwise a filter is added.
pub(super) fn ensure(
    netlink: &mut Netlink,
    pin_dir: &Path,
    ifindex: u32,
    hook: Hook,
    program: (BorrowedFd<'_>, u32, &str),
) -> Result<(), Error> {
    let (fd, id, name) = program;
    if let Some(there) = filters(netlink, ifindex, hook)?.into_iter().find(Filter::ours) {
        if there.program == id {
            return Ok(());
        }
        // The filter's flags stay: the kernel refuses a new program with other flags (cls_bpf_offload, EINVAL). Filters of agents up to v1
        // have neither flag.
        return put(netlink, ifindex, hook, (there.priority, there.skips), 0, fd, name).map_err(|refusal| {
            refusal.into_error(format!("replace the {} filter of interface {ifindex}", hook.name()))
        });
    }
    add_qdisc(netlink, pin_dir, ifindex)?;
    let mut refused = None;
    for priority in (FILTER_PRIORITY..).take(usize::from(PRIORITIES)) {
        // SKIP_HW: the program is not offered to a device for offload. A device could refuse the program, and has no access to its maps.
        match put(netlink, ifindex, hook, (priority, SKIP_HW), NLM_F_CREATE | NLM_F_EXCL, fd, name) {
            Ok(()) => return Ok(()),
            // Another filter has this priority with another kind or protocol, or has our handle.
            Err(e) if [libc::EINVAL, libc::EEXIST, libc::ENOENT].contains(&e.errno) => refused = Some(e),
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
    }
    let what = format!("add a {} filter to the clsact qdisc of interface {ifindex}", hook.name());
    Err(refused.unwrap_or(Refusal { errno: libc::EEXIST, words: None }).into_error(what))
}

fn put(
    netlink: &mut Netlink,
    ifindex: u32,
    hook: Hook,
    (priority, skips): (u16, u32),
    flags: u16,
    program: BorrowedFd<'_>,
    name: &str,
) -> Result<(), Refusal> {
    let info = u32::from(priority) << 16 | u32::from(ETH_P_ALL.to_be());
    let request = Request::new(RTM_NEWTFILTER, flags, &tcmsg(ifindex, FILTER_HANDLE, parent(hook), info))
        .text(TCA_KIND, "bpf")
        .nest(TCA_OPTIONS, |options| {
            netlink::put(options, TCA_BPF_FD, &(program.as_raw_fd() as u32).to_ne_bytes());
            netlink::put_text(options, TCA_BPF_NAME, &format!("{FILTER_PREFIX}{name}"));
            netlink::put(options, TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes());
            netlink::put(options, TCA_BPF_FLAGS_GEN, &skips.to_ne_bytes());
        });
    netlink.ask(&request).map(drop)
}

/// Removes our filter from a hook. Returns whether there was one.
pub(super) fn remove(netlink: &mut Netlink, ifindex: u32, hook: Hook) -> Result<bool, Error> {
    let mut removed = false;
    for filter in filters(netlink, ifindex, hook)?.into_iter().filter(Filter::ours) {
        let info = u32::from(filter.priority) << 16 | u32::from(filter.protocol);
        let request = Request::new(RTM_DELTFILTER, 0, &tcmsg(ifindex, filter.handle, parent(hook), info))
            .text(TCA_KIND, "bpf");
        match netlink.ask(&request) {
            Ok(_) => removed = true,
            Err(e) if [libc::ENOENT, libc::ENODEV, libc::EINVAL].contains(&e.errno) => {}
            Err(e) => {
                let what = format!("remove the {} filter of interface {ifindex}", hook.name());
                return Err(e.into_error(what));
            }
        }
    }
    Ok(removed)
}

/// Adds a clsact qdisc if the device has none. A folder in the pin folder notes that the qdisc is ours. The folder is made before the
/// qdisc, so a crash in between leaves no qdisc that nobody removes.
fn add_qdisc(netlink: &mut Netlink, pin_dir: &Path, ifindex: u32) -> Result<(), Error> {
    if devices(netlink)?.contains(&ifindex) {
        return Ok(());
    }
    let mark = names::qdisc(pin_dir, ifindex);
    folders::make(&mark).map_err(Error::file(&mark, "remember that the clsact qdisc is ours"))?;
    let request =
        Request::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &tcmsg(ifindex, CLSACT_HANDLE, CLSACT, 0))
            .text(TCA_KIND, "clsact");
    match netlink.ask(&request) {
        Ok(_) => Ok(()),
        Err(e) => {
            folders::gone(fs::remove_dir(&mark)).map_err(Error::file(mark, "remove it"))?;
            if e.errno != libc::EEXIST {
                return Err(e.into_error(format!("add a clsact qdisc to interface {ifindex}")));
            }
            // Another process added a clsact qdisc meanwhile.
            if devices(netlink)?.contains(&ifindex) {
                return Ok(());
            }
            // An ingress qdisc takes the same place. It would accept an egress filter, and run it at ingress (ingress_tcf_block,
            // net/sched/sch_ingress.c).
            Err(Error::call(format!(
                "add a clsact qdisc to interface {ifindex}, which has an ingress qdisc, and that has no egress hook"
            ))(io::Error::from_raw_os_error(e.errno)))
        }
    }
}

/// Removes a device's clsact qdisc if nodefence made it and it has no filter. Returns whether the qdisc was removed. The note that the
/// qdisc is ours is removed afterwards, also if the qdisc stays. So a crash in between leaves no qdisc that nobody removes.
///
/// Only a detach may call this. While the kernel adds or removes a qdisc, it takes the device's queues out of service for some milliseconds
/// (qdisc_graft: dev_deactivate, net/sched/sch_api.c), and packets are lost. An empty clsact qdisc costs packets nothing.
pub(super) fn remove_qdisc(netlink: &mut Netlink, pin_dir: &Path, ifindex: u32) -> Result<bool, Error> {
    let mark = names::qdisc(pin_dir, ifindex);
    if !mark.exists() {
        return Ok(false);
    }
    let mut unused = true;
    for hook in Hook::TC {
        unused &= filters(netlink, ifindex, hook)?.is_empty();
    }
    let request =
        Request::new(RTM_DELQDISC, 0, &tcmsg(ifindex, CLSACT_HANDLE, CLSACT, 0)).text(TCA_KIND, "clsact");
    let removed = match unused.then(|| netlink.ask(&request)) {
        Some(Ok(_)) => true,
        None => false,
        Some(Err(e)) if [libc::ENOENT, libc::ENODEV, libc::EINVAL].contains(&e.errno) => false,
        Some(Err(e)) => return Err(e.into_error(format!("remove the clsact qdisc of interface {ifindex}"))),
    };
    folders::gone(fs::remove_dir(&mark)).map_err(Error::file(mark, "remove it"))?;
    Ok(removed)
}

/// Removes the notes about qdiscs of devices that are gone, since another device may get their index.
pub(super) fn forget_qdiscs(pin_dir: &Path, existing: &[u32]) -> Result<(), Error> {
    let dir = names::qdiscs(pin_dir);
    let marks = fs::read_dir(&dir).map_err(Error::file(dir, "list it"))?;
    for mark in marks.flatten() {
        let ifindex: Option<u32> = mark.file_name().to_str().and_then(|name| name.parse().ok());
        if !ifindex.is_some_and(|ifindex| existing.contains(&ifindex)) {
            folders::gone(fs::remove_dir(mark.path())).map_err(Error::file(mark.path(), "remove it"))?;
        }
    }
    Ok(())
}
