//! Which device packets to one address leave by, as the kernel answers, and when that may have changed for any.
use std::{collections::BTreeSet, io, net::IpAddr};

use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};

use super::{
    error::Error,
    netlink::{Netlink, RTM_GETROUTE, Request},
};
use crate::{
    netlink::{HEADER_LEN, address_of, attributes, u16_of, u32_of},
    routes::{self, Blocks, Changed, Ways},
};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
/// `RTM_F_FIB_MATCH`: answer with the route itself, all its next hops included, not with one of them.
const FIB_MATCH: u32 = 0x2000;
const RTN_LOCAL: u8 = 2;

/// Where packets to an address go.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Route {
    /// Index of the device they leave by.
    pub ifindex: u32,
    /// Indexes of the devices that other packets to this address may leave by (several next hops).
    pub others: Vec<u32>,
    /// The router on the way, where the address is not on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel would choose.
    pub source: Option<IpAddr>,
    /// Whether the address is this machine's own.
    pub local: bool,
}

impl From<Route> for Ways {
    fn from(route: Route) -> Self {
        let Route { ifindex, others, gateway, source: _, local } = route;
        let mut devices = others;
        devices.push(ifindex);
        devices.sort_unstable();
        devices.dedup();
        Self { main: Some((ifindex, gateway)), devices, local, unknown: None }
    }
}

/// Looks up routes in the network namespace of the thread that opened it.
pub struct Lookup(Netlink);

impl Lookup {
    /// Opens a netlink socket.
    pub fn open() -> Result<Self, Error> {
        Netlink::open().map(Self)
    }

    /// The route to an address; `None` where there is none, or one that refuses (unreachable, blackhole, prohibit).
    pub fn route(&mut self, to: IpAddr) -> Result<Option<Route>, Error> {
        let Some(mut route) = self.ask(to, 0)?.and_then(|body| parse(&body)) else { return Ok(None) };
        if !route.local {
            // A kernel that does not know the flag answers as before.
            let whole = self.ask(to, FIB_MATCH)?;
            let mut devices = whole.as_deref().map(next_hops).unwrap_or_default();
            devices.remove(&route.ifindex);
            route.others = devices.into_iter().collect();
        }
        Ok(Some(route))
    }

    /// Indexes of every device by which packets to these addresses leave; addresses of this machine and addresses without a
    /// route count for nothing.
    pub fn devices(&mut self, to: impl IntoIterator<Item = IpAddr>) -> Result<BTreeSet<u32>, Error> {
        let mut devices = BTreeSet::new();
        for address in to {
            if let Some(route) = self.route(address)?.filter(|r| !r.local) {
                devices.insert(route.ifindex);
                devices.extend(route.others);
            }
        }
        Ok(devices)
    }

    fn ask(&mut self, to: IpAddr, flags: u32) -> Result<Option<Vec<u8>>, Error> {
        let (family, bits, bytes) = match to {
            IpAddr::V4(a) => (libc::AF_INET as u8, 32, a.octets().to_vec()),
            IpAddr::V6(a) => (libc::AF_INET6 as u8, 128, a.octets().to_vec()),
        };
        // `struct rtmsg`: family, destination and source lengths, tos, table, protocol, scope, type, flags.
        let mut header = [0; 12];
        header[0] = family;
        header[1] = bits;
        header[8..].copy_from_slice(&flags.to_ne_bytes());
        match self.0.ask(&Request::new(RTM_GETROUTE, 0, &header).attr(RTA_DST, &bytes)) {
            Ok(answers) => Ok(answers.into_iter().next()),
            Err(e) if [libc::EPERM, libc::ENOBUFS, libc::ENOMEM].contains(&e.errno) => {
                Err(e.into_error(format!("look up the route to {to}")))
            }
            // ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL: no route, or one of the refusing types.
            Err(_) => Ok(None),
        }
    }
}

fn parse(body: &[u8]) -> Option<Route> {
    let mut route = Route {
        ifindex: 0,
        others: Vec::new(),
        gateway: None,
        source: None,
        local: *body.get(7)? == RTN_LOCAL,
    };
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            RTA_OIF => route.ifindex = u32_of(value)?,
            RTA_GATEWAY => route.gateway = address_of(value),
            // A router of the other family: `struct rtvia` is the family and the address.
            RTA_VIA => route.gateway = address_of(value.get(2..)?),
            RTA_PREFSRC => route.source = address_of(value),
            _ => {}
        }
    }
    (route.ifindex != 0).then_some(route)
}

/// The devices of a route's next hops: `struct rtnexthop` is its length, flags, hops and ifindex.
fn next_hops(body: &[u8]) -> BTreeSet<u32> {
    let mut devices = BTreeSet::new();
    for (kind, value) in attributes(body.get(12..).unwrap_or_default()) {
        match kind {
            RTA_OIF => devices.extend(u32_of(value)),
            RTA_MULTIPATH => {
                let mut rest = value;
                while let (Some(len), Some(ifindex)) = (u16_of(rest), rest.get(4..).and_then(u32_of)) {
                    devices.insert(ifindex);
                    let len = usize::from(len).next_multiple_of(4);
                    match rest.get(len..) {
                        Some(next) if len > 0 => rest = next,
                        _ => break,
                    }
                }
            }
            _ => {}
        }
    }
    devices
}

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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn every_next_hop_is_found() {
        let mut body = vec![0; 12];
        body.extend([28, 0, 9, 0]);
        for ifindex in [3_u8, 9] {
            body.extend([12, 0, 0, 0, ifindex, 0, 0, 0, 1, 1, 1, 1]);
        }
        assert_eq!(next_hops(&body), BTreeSet::from([3, 9]));
        assert_eq!(next_hops(&body[..20]), BTreeSet::new());
    }

    #[test]
    fn own_addresses_are_local() {
        let mut lookup = Lookup::open().unwrap();
        let route = lookup.route(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap().unwrap();
        assert!(route.local);
        assert_eq!(lookup.devices([IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap(), BTreeSet::new());
    }
}
