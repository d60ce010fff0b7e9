//! When it may have changed which device packets to an address leave by.
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
    /// What decides where packets go changed since it was asked for last.
    routes: bool,
}

/// RTNLGRP_ LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE, NEXTHOP.
const GROUPS: [u32; 8] = [1, 5, 7, 8, 9, 11, 19, 32];
/// What does not fit is cut off: of a message about a device, which alone is so long, only the beginning matters.
const RECORD: usize = 4096;

impl Changes {
    /// Begins to listen. Must be called in a tokio runtime, on a thread in the network namespace that is meant.
    ///
    /// # Errors
    /// Where the kernel refuses.
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

    /// Returns after at least one change that has to do with `blocks`; what changed must be looked up. Several changes may come as one or as many.
    /// May be given up at any time: nothing that came is lost.
    ///
    /// # Errors
    /// Where the socket fails.
    pub async fn next(&mut self, blocks: &Blocks) -> Result<(), Error> {
        loop {
            self.buffer.clear();
            self.buffer.reserve(RECORD);
            let changed = match self.socket.recv(&mut self.buffer).await {
                Ok(()) => what_changed(&self.buffer),
                // Records were lost: anything may have changed.
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

    /// Whether what decides where packets go changed since this was asked last.
    pub fn take_routes(&mut self) -> bool {
        std::mem::take(&mut self.routes)
    }
}

/// Notifications come one a datagram.
fn what_changed(datagram: &[u8]) -> Changed {
    match (datagram.get(4..).and_then(u16_of), datagram.get(HEADER_LEN..)) {
        (Some(kind), Some(body)) => routes::changed(kind, body),
        _ => Changed::Any,
    }
}
