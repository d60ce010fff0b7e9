//! The neighbour and forwarding tables over route netlink (`struct ndmsg`, include/uapi/linux/neighbour.h).
use std::{collections::HashMap, net::IpAddr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use serde::Serialize;

use crate::{
    dataplane::{
        error::Error,
        netlink::{Netlink, Request},
    },
    netlink::{address_of, attributes, u16_of, u32_of},
};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDMSG_LEN: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Owned by a daemon (EVPN, say), and exempt from ageing.
const NTF_EXT_LEARNED: u8 = 0x10;
/// An IPv6 router.
const NTF_ROUTER: u8 = 0x80;

/// A next hop: the key of an entry in the neighbour table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct Hop {
    /// The device's index.
    pub ifindex: u32,
    /// The gateway's address, or the backend's own if it is on the link.
    pub address: IpAddr,
}

/// `NUD_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(pub(super) u16);

impl State {
    pub(super) const REACHABLE: Self = Self(0x02);
    pub(super) const STALE: Self = Self(0x04);
    const DELAY: Self = Self(0x08);
    const PROBE: Self = Self(0x10);
    const NOARP: Self = Self(0x40);
    const PERMANENT: Self = Self(0x80);
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Neighbour {
    pub(super) state: State,
    pub(super) mac: Vec<u8>,
    pub(super) router: bool,
    pub(super) external: bool,
}

impl Neighbour {
    /// Whether the entry is resolved and ages.
    pub(super) fn is_valid(&self) -> bool {
        !self.mac.is_empty()
            && [State::REACHABLE, State::STALE, State::DELAY, State::PROBE].contains(&self.state)
    }

    /// Whether the entry does not age, or the kernel does not age it.
    pub(super) fn is_fixed(&self) -> bool {
        self.external || [State::NOARP, State::PERMANENT].contains(&self.state)
    }
}

/// All entries of IPv4 and IPv6.
pub(super) fn list(netlink: &mut Netlink) -> Result<HashMap<Hop, Neighbour>, Error> {
    let mut table = HashMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        table.extend(dump(netlink, family)?.iter().filter_map(|body| parse(body)));
    }
    Ok(table)
}

/// For each tunnel device and MAC address, the remote address to which the device sends. Reads the forwarding entries that have a remote
/// end.
pub(super) fn forwarding(netlink: &mut Netlink) -> Result<HashMap<(u32, Vec<u8>), IpAddr>, Error> {
    Ok(dump(netlink, libc::AF_BRIDGE)?.iter().filter_map(|body| parse_forwarding(body)).collect())
}

fn dump(netlink: &mut Netlink, family: i32) -> Result<Vec<Vec<u8>>, Error> {
    let mut header = [0; NDMSG_LEN];
    header[0] = family as u8;
    netlink
        .ask(&Request::list(RTM_GETNEIGH, &header))
        .map_err(|refused| refused.into_error("list the neighbour table"))
}

/// Writes one entry. Makes the entry if it is missing.
pub(super) fn set(
    netlink: &mut Netlink,
    hop: Hop,
    mac: &[u8],
    state: State,
    router: bool,
) -> Result<(), Error> {
    let mut header = [0; NDMSG_LEN];
    header[0] = if hop.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    header[4..8].copy_from_slice(&hop.ifindex.to_ne_bytes());
    header[8..10].copy_from_slice(&state.0.to_ne_bytes());
    header[10] = if router { NTF_ROUTER } else { 0 };
    // A link-layer address that differs may be overwritten.
    let request = Request::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &header);
    let request = match hop.address {
        IpAddr::V4(address) => request.attr(NDA_DST, &address.octets()),
        IpAddr::V6(address) => request.attr(NDA_DST, &address.octets()),
    };
    netlink
        .ask(&request.attr(NDA_LLADDR, mac))
        .map(drop)
        .map_err(|refused| refused.into_error(format!("write the neighbour entry of {}", hop.address)))
}

fn parse(body: &[u8]) -> Option<(Hop, Neighbour)> {
    let ifindex = body.get(4..).and_then(u32_of)?;
    let state = State(body.get(8..).and_then(u16_of)?);
    let flags = *body.get(10)?;
    let (destination, mac) = addresses(body)?;
    let neighbour = Neighbour {
        state,
        mac: mac.unwrap_or_default(),
        router: flags & NTF_ROUTER != 0,
        external: flags & NTF_EXT_LEARNED != 0,
    };
    Some((Hop { ifindex, address: destination? }, neighbour))
}

fn parse_forwarding(body: &[u8]) -> Option<((u32, Vec<u8>), IpAddr)> {
    let (destination, mac) = addresses(body)?;
    Some(((body.get(4..).and_then(u32_of)?, mac?), destination?))
}

fn addresses(body: &[u8]) -> Option<(Option<IpAddr>, Option<Vec<u8>>)> {
    let mut destination = None;
    let mut mac = None;
    for (kind, value) in attributes(body.get(NDMSG_LEN..)?) {
        match kind {
            NDA_DST => destination = address_of(value),
            NDA_LLADDR => mac = Some(value.to_vec()),
            _ => {}
        }
    }
    Some((destination, mac))
}
