//! Packets of the machine's own sockets: they came in by no device, so they are sent once more, with the source and the destination that the
//! socket gave them. In LOCAL_OUT they are balanced as the first time.
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, socket,
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
