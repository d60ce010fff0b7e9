//! Tells when packets to an address may have begun to leave by another device.
use std::io;

use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};

use super::error::Error;
use crate::{
    netlink::{HEADER_LEN, u16_of},
    routes::{self, Blocks, Changed},
};

/// Tells when devices, addresses, routes, nexthop objects or rules of the network namespace change.
pub struct Changes {
    socket: TokioSocket,
    buffer: bytes::BytesMut,
    /// Whether anything that decides where packets go changed since [`Self::take_routes`] was last called.
    routes: bool,
}

/// RTNLGRP_ LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE, NEXTHOP.
const GROUPS: [u32; 8] = [1, 5, 7, 8, 9, 11, 19, 32];
/// The size of the receive buffer. Longer messages are truncated. Only messages about devices are longer, and only the beginning of these
/// matters.
const RECORD: usize = 4096;

impl Changes {
    /// Begins to listen. Must be called in a tokio runtime, on a thread in the network namespace that is to be watched.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket or a group.
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            for group in GROUPS {
                socket.socket_mut().add_membership(group)?;
            }
            Ok(socket)
        };
        let socket = open().map_err(Error::call("listen to route netlink"))?;
        Ok(Self { socket, buffer: bytes::BytesMut::with_capacity(RECORD), routes: false })
    }

    /// Returns after at least one change that concerns `blocks`. The caller must look up what changed. Several changes may end one call or
    /// several. The future may be dropped at any time: no change is lost.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub async fn next(&mut self, blocks: &Blocks) -> Result<(), Error> {
        loop {
            self.buffer.clear();
            self.buffer.reserve(RECORD);
            let changed = match self.socket.recv(&mut self.buffer).await {
                Ok(()) => what_changed(&self.buffer),
                // The kernel dropped messages, so anything may have changed.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Changed::Any,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => Changed::Nothing,
                Err(e) => return Err(Error::call("listen to route netlink")(e)),
            };
            match changed {
                Changed::Nothing => {}
                Changed::Device => return Ok(()),
                Changed::Route(range) if !blocks.touch(range) => {}
                Changed::Route(_) | Changed::Any => {
                    self.routes = true;
                    return Ok(());
                }
            }
        }
    }

    /// Whether anything that decides where packets go changed since this was last called.
    pub fn take_routes(&mut self) -> bool {
        std::mem::take(&mut self.routes)
    }
}

/// Reads a datagram, which has one notification.
fn what_changed(datagram: &[u8]) -> Changed {
    match (datagram.get(4..).and_then(u16_of), datagram.get(HEADER_LEN..)) {
        (Some(kind), Some(body)) => routes::changed(kind, body),
        _ => Changed::Any,
    }
}
