//! Rescue of packets of the machine's own sockets. These packets entered by no device, so they are sent again, with the source and the
//! destination that the socket gave them. In LOCAL_OUT they are balanced again, where the kernel balances packets of a raw socket.
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

/// Sends whole IP packets. A socket of IPPROTO_RAW accepts packets with their IP header (raw(7), and `inet6_create`,
/// net/ipv6/af_inet6.c) and receives nothing.
#[derive(Debug)]
pub struct OwnPackets {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl OwnPackets {
    /// Opens the sockets in the calling thread's network namespace. Where there is no IPv6 there is no IPv6 socket, and no packet needs it.
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
    /// Where the kernel refuses the packet: there is no route, a rule drops it, a device's queue is full.
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

/// The number of flows in a row that must be found unbalanced before the kind counts as unbalanced. One flow may be unbalanced for a
/// passing reason: a full conntrack table, an entry that others deleted before it was checked, a Service that has just been changed.
const BELIEVED: usize = 3;
/// How long (ns) a kind counts as unbalanced. Then one packet is sent again, and its outcome checked.
const BELIEVED_NS: u64 = 30_000_000_000;

/// Whether packets of own sockets of one kind are balanced again when they are sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Own {
    /// Not known yet.
    #[default]
    Unknown,
    /// The packets are balanced: a flow was checked.
    Balanced,
    /// The packets are not balanced. Their stale entries are deleted instead, and each packet waits until its sender repeats it.
    Repeated,
}

/// The findings about one kind of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    own: Own,
    /// Flows that were found unbalanced since a flow was last found balanced.
    missed: [Option<Tuple>; BELIEVED],
    /// When (CLOCK_MONOTONIC ns) a packet of this kind was last sent.
    tried: u64,
}

/// The findings about each IP version and protocol. A kernel or a rule may treat one of them differently from the others. Pure.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnFound([Found; 4]);

/// The kinds' names, in the order of [`OwnFound`].
const KINDS: [&str; 4] = ["IPv4 TCP", "IPv4 UDP", "IPv6 TCP", "IPv6 UDP"];

impl OwnFound {
    fn of(&mut self, ends: &Tuple) -> &mut Found {
        let sixth = usize::from(ends.dst.as_v4().is_none());
        &mut self.0[sixth * 2 + usize::from(ends.protocol != protocol::TCP)]
    }

    /// Whether to send a packet with these ends again at `now` (CLOCK_MONOTONIC ns). Of a kind that counts as unbalanced one packet is sent
    /// each 30 s (`BELIEVED_NS`), to check whether the kind is still unbalanced.
    pub fn may_send(&mut self, ends: &Tuple, now: u64) -> bool {
        let found = self.of(ends);
        let send = found.own != Own::Repeated || now.saturating_sub(found.tried) >= BELIEVED_NS;
        if send {
            found.tried = now;
        }
        send
    }

    /// Whether the outcome for a sent packet must still be checked.
    pub fn is_open(&mut self, ends: &Tuple) -> bool {
        self.of(ends).own != Own::Balanced
    }

    /// Records the outcome for a sent packet. `true` where the packet's kind counts as unbalanced from this outcome on.
    pub fn seen(&mut self, ends: &Tuple, balanced: bool) -> bool {
        let found = self.of(ends);
        let before = found.own;
        if balanced {
            found.own = Own::Balanced;
            found.missed = [None; BELIEVED];
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

    /// The findings as `status` shows them.
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
        let src = Addr::v4([10, 2, 0, 11]);
        let dst = Addr::v4([10, 96, 0, 10]);
        Tuple { src, dst, src_port: port, dst_port: 80, protocol }
    }

    #[test]
    fn one_look_that_fails_decides_nothing() {
        let mut own = OwnFound::default();
        assert_eq!(own.row().to_string(), "not tried yet");
        // One flow counts once, however often it is seen.
        for at in 0..10 {
            assert!(own.may_send(&ends(1, 6), at));
            assert!(!own.seen(&ends(1, 6), false));
        }
        assert!(!own.seen(&ends(2, 6), false) && own.may_send(&ends(3, 6), 20) && own.is_open(&ends(3, 6)));
        // Another flow is balanced, so the unbalanced ones were not three in a row.
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
        // Other kinds are not affected.
        let sixth = Tuple { dst: Addr::v6([0xfd; 16]), ..ends(4, 6) };
        assert!(own.may_send(&ends(4, 17), start + 1) && own.may_send(&sixth, start + 1));
        // One packet is tried, and no second one.
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
