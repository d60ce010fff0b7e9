//! The bpf(2) commands that aya does not offer, or not in the way needed here: links by pin with their device and program, links that never
//! fall back to netlink, lists of programs on a hook, test runs without an allocation, and reads of many map entries at once.
#![expect(unsafe_code, reason = "raw bpf(2)")]
use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use aya::{
    Pod,
    maps::{Array, HashMap, IterableMap as _, MapData},
};

const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;

/// Attach types of `enum bpf_attach_type`.
pub(super) const BPF_XDP: u32 = 37;
pub(super) const BPF_TCX_EGRESS: u32 = 47;
/// Ahead of every program of the hook (6.6 and later).
pub(super) const BPF_F_BEFORE: u32 = 1 << 3;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE`.
pub(super) const XDP_SKB: u32 = 1 << 1;
pub(super) const XDP_DRV: u32 = 1 << 2;

/// Types of `enum bpf_link_type`.
pub(super) const LINK_XDP: u32 = 6;
pub(super) const LINK_TCX: u32 = 11;

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads and writes at most the given size; every pointer in `attr` outlives the call.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn new_fd(ret: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor to us alone.
    unsafe { OwnedFd::from_raw_fd(ret as i32) }
}

#[repr(C)]
struct ObjectAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// BPF_OBJ_GET: opens a pin.
pub(super) fn get(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = ObjectAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    bpf(BPF_OBJ_GET, &mut attr).map(new_fd)
}

/// BPF_OBJ_PIN: pins a program, map or link.
pub(super) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = ObjectAttr { path: path.as_ptr() as u64, fd: fd.as_raw_fd() as u32, flags: 0 };
    bpf(BPF_OBJ_PIN, &mut attr).map(drop)
}

#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

fn info(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<()> {
    let mut attr =
        InfoAttr { fd: fd.as_raw_fd() as u32, len: buffer.len() as u32, info: buffer.as_mut_ptr() as u64 };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr).map(drop)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

/// The part of `struct bpf_link_info` that is needed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LinkInfo {
    /// `enum bpf_link_type`.
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) program: u32,
    /// 0 if the device is gone.
    pub(super) ifindex: u32,
}

pub(super) fn link_info(fd: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    // type, id, prog_id, padding; then the union, in which tcx and xdp both begin with the ifindex.
    let mut buffer = [0_u8; 64];
    info(fd, &mut buffer)?;
    Ok(LinkInfo {
        kind: u32_at(&buffer, 0),
        id: u32_at(&buffer, 4),
        program: u32_at(&buffer, 8),
        ifindex: u32_at(&buffer, 16),
    })
}

/// The part of `struct bpf_map_info` that decides whether a pinned map can be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MapInfo {
    pub(super) kind: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
}

pub(super) fn map_info(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let mut buffer = [0_u8; 24];
    info(fd, &mut buffer)?;
    Ok(MapInfo {
        kind: u32_at(&buffer, 0),
        key_size: u32_at(&buffer, 8),
        value_size: u32_at(&buffer, 12),
        max_entries: u32_at(&buffer, 16),
        flags: u32_at(&buffer, 20),
    })
}

/// The arguments of BPF_MAP_LOOKUP_BATCH.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// BPF_MAP_LOOKUP_BATCH (5.6 and later): reads every value of an array by one call. `zero` fills the values until they are read.
pub(super) fn values<V: Pod>(array: &Array<MapData, V>, zero: V) -> io::Result<Vec<V>> {
    // The kernel writes keys and values of the map's sizes. aya compared these sizes with the types when it opened the map.
    let mut keys = vec![0_u32; array.len() as usize];
    let mut values = vec![zero; keys.len()];
    let mut last = 0_u32;
    let mut attr = BatchAttr {
        in_batch: 0,
        out_batch: std::ptr::from_mut(&mut last) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: array.len(),
        map: array.map().fd().as_fd().as_raw_fd() as u32,
        element_flags: 0,
        flags: 0,
    };
    bpf(BPF_MAP_LOOKUP_BATCH, &mut attr)?;
    if attr.count == array.len() {
        Ok(values)
    } else {
        Err(io::Error::other(format!("{} of {} values were read", attr.count, array.len())))
    }
}

/// Some entries of a hash map.
pub(super) struct Page<K, V> {
    pub(super) entries: Vec<(K, V)>,
    /// Where to go on. `None` after the last entries.
    pub(super) next: Option<u32>,
}

/// BPF_MAP_LOOKUP_BATCH (5.6 and later): reads the entries of some buckets of a hash map, about `at_most` of them, by one call. `from` is
/// where the page before ended.
///
/// An entry that is in the map all the while is in exactly one page: an entry stays in its bucket, and a place is a bucket's number
/// (`__htab_map_lookup_and_delete_batch`, kernel/bpf/hashtab.c).
pub(super) fn page<K: Pod, V: Pod>(
    map: &HashMap<MapData, K, V>,
    from: Option<u32>,
    at_most: u32,
) -> io::Result<Page<K, V>> {
    let mut room = at_most;
    let mut tries = 0;
    loop {
        let mut keys: Vec<K> = Vec::with_capacity(room as usize);
        let mut values: Vec<V> = Vec::with_capacity(room as usize);
        let first = from.unwrap_or_default();
        let mut next = first;
        let mut attr = BatchAttr {
            in_batch: from.map_or(0, |_| std::ptr::from_ref(&first) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: room,
            map: map.map().fd().as_fd().as_raw_fd() as u32,
            element_flags: 0,
            flags: 0,
        };
        let over = match bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) {
            Ok(_) => false,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => true,
                // One bucket has more entries than there is room for.
                Some(libc::ENOSPC) if room < u32::MAX / 2 => {
                    room *= 2;
                    continue;
                }
                // A bucket was locked, or the kernel had no memory at the moment.
                Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) if tries < BATCH_TRIES => {
                    tries += 1;
                    std::thread::sleep(BATCH_PAUSE);
                    continue;
                }
                _ => return Err(error),
            },
        };
        let count = attr.count.min(room) as usize;
        // SAFETY: there is room for `count` elements, and the kernel has just written as many keys and values. They have the sizes that aya
        // compared with the types when it opened the map.
        unsafe {
            keys.set_len(count);
            values.set_len(count);
        }
        let next = (!over).then_some(next);
        return Ok(Page { entries: keys.into_iter().zip(values).collect(), next });
    }
}

/// How often a read of a page that failed only for the moment is tried again.
const BATCH_TRIES: u32 = 20;
/// The pause before each further try.
const BATCH_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// The id and name of a program, by descriptor.
pub(super) fn program_info(fd: BorrowedFd<'_>) -> io::Result<(u32, String)> {
    let mut buffer = [0_u8; 80];
    info(fd, &mut buffer)?;
    let name = buffer[64..].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok((u32_at(&buffer, 4), String::from_utf8_lossy(name).into_owned()))
}

/// The name of a program, by id. Empty if it has no name or is gone.
pub(super) fn program_name(id: u32) -> String {
    #[repr(C)]
    struct IdAttr {
        id: u32,
        next: u32,
        flags: u32,
    }
    bpf(BPF_PROG_GET_FD_BY_ID, &mut IdAttr { id, next: 0, flags: 0 })
        .map(new_fd)
        .and_then(|fd| program_info(fd.as_fd()))
        .map(|(_, name)| name)
        .unwrap_or_default()
}

#[repr(C)]
struct LinkCreateAttr {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    zero: u32,
    revision: u64,
}

/// BPF_LINK_CREATE on a device.
pub(super) fn link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr = LinkCreateAttr {
        program: program.as_raw_fd() as u32,
        ifindex,
        attach_type,
        flags,
        relative: 0,
        zero: 0,
        revision: 0,
    };
    bpf(BPF_LINK_CREATE, &mut attr).map(new_fd)
}

/// BPF_LINK_UPDATE: makes the link run the new program from the next packet on.
pub(super) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        link: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let mut attr =
        Attr { link: link.as_raw_fd() as u32, program: program.as_raw_fd() as u32, flags: 0, old_program: 0 };
    bpf(BPF_LINK_UPDATE, &mut attr).map(drop)
}

/// BPF_LINK_DETACH (5.9 and later): detaches at once. Otherwise the kernel detaches some time after the last reference is gone.
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(BPF_LINK_DETACH, &mut (link.as_raw_fd() as u32)).map(drop)
}

/// BPF_PROG_QUERY: ids of the tcx programs of a device's egress, in the order in which they run (6.6 and later).
pub(super) fn query_tcx(ifindex: u32) -> io::Result<Vec<u32>> {
    #[repr(C)]
    struct Attr {
        ifindex: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        zero: u32,
        more: [u64; 4],
    }
    // A hook holds at most 64 programs (BPF_MPROG_MAX).
    let mut ids = [0_u32; 64];
    let mut attr = Attr {
        ifindex,
        attach_type: BPF_TCX_EGRESS,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        zero: 0,
        more: [0; 4],
    };
    bpf(BPF_PROG_QUERY, &mut attr)?;
    Ok(ids[..(attr.count as usize).min(ids.len())].to_vec())
}

/// BPF_PROG_TEST_RUN of a classifier over one frame. `context` is the head of a `struct __sk_buff`. Returns what the
/// program returned.
pub(super) fn test_run(program: BorrowedFd<'_>, frame: &[u8], context: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    struct Attr {
        program: u32,
        returned: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        context_size_in: u32,
        context_size_out: u32,
        context_in: u64,
        context_out: u64,
    }
    let mut attr = Attr {
        program: program.as_raw_fd() as u32,
        returned: 0,
        data_size_in: frame.len() as u32,
        data_size_out: 0,
        data_in: frame.as_ptr() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
        context_size_in: context.len() as u32,
        context_size_out: 0,
        context_in: context.as_ptr() as u64,
        context_out: 0,
    };
    bpf(BPF_PROG_TEST_RUN, &mut attr)?;
    Ok(attr.returned)
}
