//! One flow from each of some clients to each of some targets.

use std::{
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
        sockopt::ReuseAddr,
    },
};

use super::per_worker;
use crate::Netns;

/// Sends a datagram from each of so many sockets at an address to each target, which nobody waits for.
///
/// # Errors
/// Where a socket is not to be had, or a datagram is refused.
pub fn datagrams(ns: &Netns, from: IpAddr, clients: usize, to: &[SocketAddr]) -> Result<()> {
    ns.within(|| {
        // All open to the end: a port that is free again may be given to the next one, whose flows would be no new ones.
        let mut open = Vec::new();
        for _ in 0..clients {
            let socket = UdpSocket::bind((from, 0))?;
            for target in to {
                socket.send_to(b"x", target)?;
            }
            open.push(socket);
        }
        Ok(())
    })
}

/// Begins a connection from each of so many clients to each target, which nobody waits for. `from` is the address and port of a client for a target.
///
/// # Errors
/// Where a socket is not to be had, or there are more than a process may have.
pub fn connections(
    ns: &Netns,
    from: impl Fn(u16, SocketAddr) -> SocketAddr + Sync,
    clients: u16,
    to: &[SocketAddr],
) -> Result<Vec<TcpStream>> {
    let most = per_worker()?;
    ensure!(usize::from(clients) * to.len() <= most, "a process may have {most} connections");
    ns.within(|| {
        let mut open = Vec::with_capacity(usize::from(clients) * to.len());
        for client in 0..clients {
            for target in to {
                let domain = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                let socket = socket(domain, SockType::Stream, flags, None)?;
                setsockopt(&socket, ReuseAddr, &true)?;
                bind(socket.as_raw_fd(), &SockaddrStorage::from(from(client, *target)))
                    .context("cannot bind a client's socket")?;
                match connect(socket.as_raw_fd(), &SockaddrStorage::from(*target)) {
                    Ok(()) | Err(Errno::EINPROGRESS) => open.push(TcpStream::from(socket)),
                    Err(error) => return Err(error).context("cannot connect"),
                }
            }
        }
        Ok(open)
    })
}
