//! Makes one flow from each client to each target.

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

/// Sends a datagram to each target from each of `clients` sockets at the address `from`. Does not wait for answers.
///
/// # Errors
/// Fails if no socket is free, or if a datagram is refused.
pub fn datagrams(ns: &Netns, from: IpAddr, clients: usize, to: &[SocketAddr]) -> Result<()> {
    ns.within(|| {
        // All sockets stay open to the end. The port of a closed socket could be given to the next socket, whose flows would then not be new.
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

/// Begins a connection from each of `clients` clients to each target. Does not wait for the connections. `from` returns a client's address and port for a
/// target.
///
/// # Errors
/// Fails if no socket is free, or if there are more connections than a process may have files.
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
