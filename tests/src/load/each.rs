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

/// Sends a datagram to each target from each of so many sockets at an address. Nobody waits for an answer.
///
/// # Errors
/// Where no socket is free, or a datagram is refused.
pub fn datagrams(ns: &Netns, from: IpAddr, clients: usize, to: &[SocketAddr]) -> Result<()> {
    ns.within(|| {
        // All sockets stay open to the end. A freed port may be given to the next socket, whose flows would not be new ones.
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

/// Begins a connection from each of so many clients to each target. Nobody waits for them. `from` gives a client's address and port for a target.
///
/// # Errors
/// Where no socket is free, or there are more than a process may have.
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
