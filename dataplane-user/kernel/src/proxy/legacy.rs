//! Looks for chains of iptables-legacy. The kernel has no netlink for its tables, so a whole table is read by getsockopt(2), as
//! iptables-legacy itself does (include/uapi/linux/netfilter_ipv4/ip_tables.h and netfilter_ipv6/ip6_tables.h, whose layouts agree
//! in what is read here).
#![expect(unsafe_code, reason = "raw getsockopt(2): the options have no safe wrapper")]
use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nodefence_core::Family;

/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`; ip6_tables has the same numbers.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// `XT_TABLE_MAXNAMELEN`.
const NAME_LEN: usize = 32;
/// Length of `struct ipt_getinfo`; its last word is the size of the table.
const INFO_LEN: usize = 84;
/// Length of `struct ipt_get_entries` before the entries: name, size, padding to 8.
const HEAD_LEN: usize = 40;
/// Bytes of the largest table that is read (10,000 Services make some 20 MB).
const LARGEST: usize = 256 << 20;
/// A user-defined chain begins with a target of this name (`XT_ERROR_TARGET`). The target begins `TARGET_LEN` bytes before the
/// chain's name (`struct xt_error_target`): two bytes of length, 29 of name, one of revision.
const ERROR_TARGET: &[u8] = b"ERROR\0";
const TARGET_LEN: usize = 32;
const TARGET_NAME: usize = 2;

/// Whether a table of iptables or ip6tables has a chain of this name. The kernel loads the table's module where the module is
/// missing, so look for the table in `/proc/net/ip_tables_names` first.
pub(super) fn has_chain(family: Family, table: &str, chain: &str) -> io::Result<bool> {
    let (domain, level) = match family {
        Family::V4 => (AddressFamily::Inet, libc::IPPROTO_IP),
        Family::V6 => (AddressFamily::Inet6, libc::IPPROTO_IPV6),
    };
    let socket = socket(domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
    let mut info = vec![0; INFO_LEN];
    put_name(&mut info, table)?;
    get(&socket, level, GET_INFO, &mut info)?;
    let size = info.last_chunk().map_or(0, |size| u32::from_ne_bytes(*size));
    if size as usize > LARGEST {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let mut entries = vec![0; HEAD_LEN + size as usize];
    put_name(&mut entries, table)?;
    entries[NAME_LEN..NAME_LEN + 4].copy_from_slice(&size.to_ne_bytes());
    // EAGAIN: the table was changed in between. Callers look again later.
    get(&socket, level, GET_ENTRIES, &mut entries)?;
    Ok(names_chain(&entries[HEAD_LEN..], chain))
}

fn put_name(buffer: &mut [u8], name: &str) -> io::Result<()> {
    if name.len() >= NAME_LEN {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    buffer[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}

/// Whether one of the entries is the head of this chain.
fn names_chain(entries: &[u8], chain: &str) -> bool {
    let name = [chain.as_bytes(), &[0]].concat();
    let target = |at: usize| Some(&entries[at.checked_sub(TARGET_LEN)? + TARGET_NAME..]);
    // Entries and targets are aligned to 8 bytes, and so is the name behind a target.
    (0..entries.len())
        .step_by(8)
        .filter(|at| entries[*at..].starts_with(&name))
        .any(|at| target(at).is_some_and(|target| target.starts_with(ERROR_TARGET)))
}

fn get(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads and writes at most `len` bytes of the buffer, which outlives the call.
    let code = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &raw mut len)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain's head as it lies in a table: some entry, then the target with the name.
    fn head(target: &[u8], name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xee; 112];
        bytes.extend_from_slice(&64_u16.to_ne_bytes());
        bytes.extend_from_slice(target);
        bytes.resize(112 + TARGET_LEN, 0);
        bytes.extend_from_slice(name);
        bytes.resize(112 + 64, 0);
        bytes
    }

    #[test]
    fn a_chain_is_known_by_its_head() {
        let ours = head(b"ERROR\0", b"KUBE-SERVICES\0");
        let other = head(b"ERROR\0", b"KUBE-SERVICES-2\0");
        assert!(names_chain(&[other.clone(), ours.clone()].concat(), "KUBE-SERVICES"));
        assert!(!names_chain(&other, "KUBE-SERVICES"));
        // A comment or another target's data of that name is no chain.
        assert!(!names_chain(&head(b"LOG\0", b"KUBE-SERVICES\0"), "KUBE-SERVICES"));
        assert!(!names_chain(b"KUBE-SERVICES\0", "KUBE-SERVICES"));
        for len in 0..ours.len() {
            names_chain(&ours[..len], "KUBE-SERVICES");
        }
    }
}
