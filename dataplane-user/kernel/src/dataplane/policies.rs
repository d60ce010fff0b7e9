//! Reads the IPsec policies, which decide whether packets leave as they are.
use std::{fs, path::Path};

use netlink_sys::protocols::NETLINK_XFRM;

use super::netlink::{Netlink, Request};
use crate::routes::{self, Policies};

const XFRM_MSG_NEWPOLICY: u16 = 19;
const XFRM_MSG_GETPOLICY: u16 = 21;
/// This file exists if `af_key` is loaded, through which policies can be made too.
const BY_KEY: &str = "/proc/thread-self/net/pfkey";
const SOCKETS: &str = "/proc/thread-self/net/netlink";

/// Reads all policies once, in the calling thread's network namespace, and sorts them. Loads no module: if no program has ever asked for
/// XFRM, there are no policies. Needs CAP_NET_ADMIN.
pub fn read() -> Policies {
    if !is_there() {
        return Policies::default();
    }
    let mut netlink = match Netlink::of(NETLINK_XFRM) {
        Ok(netlink) => netlink,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Policies::default(),
        Err(error) => return Policies { unread: Some(error.to_string()), ..Policies::default() },
    };
    // `struct xfrm_userpolicy_id`, which the kernel ignores when it lists policies.
    let request = Request::list(XFRM_MSG_GETPOLICY, &[0; 64]);
    let parse = |kind, body: &[u8]| if kind == XFRM_MSG_NEWPOLICY { routes::policy(body) } else { None };
    match netlink.ask_for(&request, parse) {
        Ok(mut list) => {
            // A policy that is renewed moves in the kernel's list.
            list.sort_unstable();
            list.dedup();
            Policies { list, unread: None }
        }
        Err(refusal) => {
            Policies { unread: Some(refusal.into_error("list them").to_string()), ..Policies::default() }
        }
    }
}

/// Whether the kernel's end of NETLINK_XFRM exists. Without it, opening a socket of that protocol would load `xfrm_user` (`netlink_create`,
/// net/netlink/af_netlink.c).
fn is_there() -> bool {
    let listed = |sockets: String| has_protocol(&sockets, NETLINK_XFRM);
    fs::read_to_string(SOCKETS).map_or(true, listed) || Path::new(BY_KEY).exists()
}

/// Whether the list of netlink sockets has a socket of this protocol. The protocol is the second column.
fn has_protocol(sockets: &str, protocol: isize) -> bool {
    let protocol = protocol.to_string();
    sockets.lines().any(|line| line.split_whitespace().nth(1) == Some(protocol.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_end_is_found_in_the_list_of_sockets() {
        let head =
            "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n";
        let route = "00000000c9ed5b1f 0   6          00000000 0        0        0     2        0        6\n";
        let xfrm = "00000000ab3a2cc4 6   0          00000000 0        0        0     2        0        99\n";
        assert!(!has_protocol(&[head, route].concat(), NETLINK_XFRM));
        assert!(has_protocol(&[head, route, xfrm].concat(), NETLINK_XFRM));
    }
}
