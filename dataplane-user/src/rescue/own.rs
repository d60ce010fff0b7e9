//! Packets of the machine's own sockets. They came in by no device, so they are sent once more, with the source and the destination that
//! the socket gave them. In LOCAL_OUT they are balanced as the first time, where the kernel balances what a raw socket sends.
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, socket,
};
use nodefence_common::packet::protocol;

use crate::{
    conntrack::Tuple,
    report::{OwnRow, OwnState},
};

/// Sends whole IP packets. A socket of IPPROTO_RAW takes them with their header (raw(7), and `inet6_create`, net/ipv6/af_inet6.c) and receives
/// nothing.
#[derive(Debug)]
pub struct OwnPackets {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl OwnPackets {
    /// Sockets in the calling thread's network namespace. Where the machine has no IPv6, it has no packets of it.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        let open = |family| socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw);
        Ok(Self { v4: open(AddressFamily::Inet)?, v6: open(AddressFamily::Inet6).ok() })
    }

    /// Sends a packet that begins with its IP header to `to`.
    ///
    /// # Errors
    /// What the kernel says: no route, a rule that refuses it, a device's queue that is full.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT;
        let sent = match to {
            IpAddr::V4(to) => {
                let [a, b, c, d] = to.octets();
                sendto(self.v4.as_raw_fd(), packet, &SockaddrIn::new(a, b, c, d, 0), flags)?
            }
            IpAddr::V6(to) => {
                let Some(socket) = &self.v6 else {
                    return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
                };
                let to = SockaddrIn6::from(std::net::SocketAddrV6::new(to, 0, 0, 0));
                sendto(socket.as_raw_fd(), packet, &to, flags)?
            }
        };
        if sent == packet.len() { Ok(()) } else { Err(io::Error::other("cut short")) }
    }
}

/// How many flows in a row must be found unbalanced before that is believed. One may be unbalanced for a reason that passes: a full
/// conntrack table, an entry that others deleted before it was looked at, a Service that has just been changed.
const BELIEVED: usize = 3;
/// How long (ns) that is believed. Then one packet is sent once more, and looked at.
const BELIEVED_NS: u64 = 30_000_000_000;

/// Whether packets of own sockets of one kind are balanced anew when they are sent once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Own {
    /// No flow was found either way yet.
    #[default]
    Unknown,
    /// They are balanced: one was looked at.
    Balanced,
    /// They are not balanced: their stale entries are deleted, and they wait until their sender repeats them.
    Repeated,
}

/// What was found of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    own: Own,
    /// Flows that were found unbalanced, since one was found balanced.
    missed: [Option<Tuple>; BELIEVED],
    /// When (CLOCK_MONOTONIC ns) one was sent last.
    tried: u64,
}

/// What was found of each IP version and protocol: a kernel or a rule may treat one otherwise than the others. Pure.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnFound([Found; 4]);

/// Names of the kinds, in their order.
const KINDS: [&str; 4] = ["IPv4 TCP", "IPv4 UDP", "IPv6 TCP", "IPv6 UDP"];

impl OwnFound {
    fn of(&mut self, ends: &Tuple) -> &mut Found {
        let sixth = usize::from(ends.dst.as_v4().is_none());
        &mut self.0[sixth * 2 + usize::from(ends.protocol != protocol::TCP)]
    }

    /// Whether a packet with these ends is to be sent once more at `now` (CLOCK_MONOTONIC ns). Where nothing else speaks for it, one is now and
    /// then, to see whether it still holds.
    pub fn may_send(&mut self, ends: &Tuple, now: u64) -> bool {
        let found = self.of(ends);
        let send = found.own != Own::Repeated || now.saturating_sub(found.tried) >= BELIEVED_NS;
        if send {
            found.tried = now;
        }
        send
    }

    /// Whether the outcome for a sent packet is still to be looked at.
    pub fn is_open(&mut self, ends: &Tuple) -> bool {
        self.of(ends).own != Own::Balanced
    }

    /// Notes the outcome for a sent packet. `true` where nothing more of its kind is sent because of it.
    pub fn seen(&mut self, ends: &Tuple, balanced: bool) -> bool {
        let found = self.of(ends);
        let before = found.own;
        if balanced {
            (found.own, found.missed) = (Own::Balanced, [None; BELIEVED]);
        } else if !found.missed.contains(&Some(*ends))
            && let Some(free) = found.missed.iter_mut().find(|place| place.is_none())
        {
            *free = Some(*ends);
        }
        if found.missed.iter().all(Option::is_some) {
            found.own = Own::Repeated;
        }
        found.own == Own::Repeated && before != Own::Repeated
    }

    /// For `status`.
    pub fn row(&self) -> OwnRow {
        let of = |own| self.0.iter().zip(KINDS).filter(move |(found, _)| found.own == own);
        let repeated: Vec<String> = of(Own::Repeated).map(|(_, kind)| kind.to_owned()).collect();
        let state = match () {
            () if !repeated.is_empty() => OwnState::Repeated,
            () if of(Own::Balanced).next().is_some() => OwnState::Balanced,
            () => OwnState::NotTried,
        };
        OwnRow { state, repeated }
    }
}

#[cfg(test)]
mod tests {
    use nodefence_common::Addr;

    use super::*;

    fn ends(port: u16, protocol: u8) -> Tuple {
        let (src, dst) = (Addr::v4([10, 2, 0, 11]), Addr::v4([10, 96, 0, 10]));
        Tuple { src, dst, src_port: port, dst_port: 80, protocol }
    }

    #[test]
    fn one_look_that_fails_decides_nothing() {
        let mut own = OwnFound::default();
        assert_eq!(own.row().to_string(), "not tried yet");
        // One flow, however often it comes round.
        for at in 0..10 {
            assert!(own.may_send(&ends(1, 6), at));
            assert!(!own.seen(&ends(1, 6), false));
        }
        assert!(!own.seen(&ends(2, 6), false) && own.may_send(&ends(3, 6), 20) && own.is_open(&ends(3, 6)));
        // Another one goes well: they were not in a row.
        assert!(!own.seen(&ends(3, 6), true));
        assert_eq!(own.row().to_string(), "balanced anew");
        assert!(!own.is_open(&ends(4, 6)) && own.may_send(&ends(4, 6), 21));
    }

    #[test]
    fn three_flows_in_a_row_are_believed_for_a_while() {
        let mut own = OwnFound::default();
        let start = 100 * BELIEVED_NS;
        assert!(own.may_send(&ends(1, 6), start));
        assert_eq!([1, 2, 3].map(|port| own.seen(&ends(port, 6), false)), [false, false, true]);
        assert_eq!(own.row().to_string(), "IPv4 TCP: go elsewhere when they are sent again");
        assert!(!own.may_send(&ends(4, 6), start + 1) && !own.may_send(&ends(4, 6), start + BELIEVED_NS - 1));
        // Other kinds are another matter.
        let sixth = Tuple { dst: Addr::v6([0xfd; 16]), ..ends(4, 6) };
        assert!(own.may_send(&ends(4, 17), start + 1) && own.may_send(&sixth, start + 1));
        // One is tried, and no second one.
        let later = start + BELIEVED_NS;
        assert!(own.may_send(&ends(5, 6), later) && own.is_open(&ends(5, 6)));
        assert!(!own.seen(&ends(5, 6), false) && !own.may_send(&ends(6, 6), later + 1));
        let again = later + BELIEVED_NS;
        assert!(own.may_send(&ends(6, 6), again));
        assert!(!own.seen(&ends(6, 6), true));
        assert!(own.may_send(&ends(7, 6), again + 1) && own.may_send(&ends(8, 6), again + 2));
        assert_eq!(own.row().to_string(), "balanced anew");
    }
}
