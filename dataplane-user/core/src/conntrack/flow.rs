use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use nodefence_common::Addr;

/// Bits of [`Flow::status`] (`enum ip_conntrack_status`, nf_conntrack_common.h).
pub mod status {
    /// Packets were seen in both directions.
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// The flow is not dropped early when the table is full.
    pub const ASSURED: u32 = 1 << 2;
    /// The source is translated (masquerade).
    pub const SRC_NAT: u32 = 1 << 4;
    /// The destination is translated (a service).
    pub const DST_NAT: u32 = 1 << 5;
}

/// State of a TCP flow (`enum tcp_conntrack`, nf_conntrack_tcp.h).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TcpState {
    /// Nothing seen.
    None,
    /// A SYN was seen.
    SynSent,
    /// A SYN|ACK was seen.
    SynRecv,
    /// Both sides agreed.
    Established,
    /// One side is done.
    FinWait,
    /// The other side acknowledged that.
    CloseWait,
    /// Both sides are done, the last ACK is missing.
    LastAck,
    /// Closed in order.
    TimeWait,
    /// Reset.
    Close,
    /// Simultaneous open.
    SynSent2,
    /// A number of a later kernel.
    Unknown(u8),
}

impl From<u8> for TcpState {
    fn from(raw: u8) -> Self {
        match raw {
            0 => Self::None,
            1 => Self::SynSent,
            2 => Self::SynRecv,
            3 => Self::Established,
            4 => Self::FinWait,
            5 => Self::CloseWait,
            6 => Self::LastAck,
            7 => Self::TimeWait,
            8 => Self::Close,
            9 => Self::SynSent2,
            other => Self::Unknown(other),
        }
    }
}

/// A conntrack zone other than the default one; an entry in the default zone has `None`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Zone {
    /// Holds for both directions (`CTA_ZONE`).
    Both(u16),
    /// Holds for the original direction only.
    Original(u16),
    /// Holds for the reply direction only.
    Reply(u16),
}

impl Zone {
    /// The zone's number.
    pub const fn id(self) -> u16 {
        match self {
            Self::Both(id) | Self::Original(id) | Self::Reply(id) => id,
        }
    }
}

/// One direction of a flow. Ports are 0 for protocols that have none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tuple {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// Source port, host order.
    pub src_port: u16,
    /// Destination port, host order.
    pub dst_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

/// One conntrack entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// The direction that the client sends: to the Service.
    pub orig: Tuple,
    /// The direction of answers: from the backend, to the client or, with masquerade, to this node.
    pub reply: Tuple,
    /// State, where the flow is TCP.
    pub tcp: Option<TcpState>,
    /// Whether no TCP segment of the reply direction counts as out of window (`IP_CT_TCP_FLAG_BE_LIBERAL`).
    pub liberal: bool,
    /// [`status`] bits.
    pub status: u32,
    /// The entry's zone.
    pub zone: Option<Zone>,
    /// The entry's id: a hash of the original direction and of where the entry lies in memory. So an entry that is made anew may have the same id.
    pub id: u32,
    /// Seconds until the entry expires.
    pub timeout: u32,
}

impl Flow {
    /// The backend's end.
    pub fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.reply.src.into(), self.reply.src_port)
    }

    /// Whether the entry is in this zone (0: the default one). An entry with a zone for one direction alone is in none, since its other direction has another zone.
    pub fn is_in(&self, zone: u16) -> bool {
        match self.zone {
            None => zone == 0,
            Some(Zone::Both(id)) => id == zone,
            Some(Zone::Original(_) | Zone::Reply(_)) => false,
        }
    }

    /// Whether the flow goes elsewhere than its sender said. IPVS changes the reply direction and sets no NAT status (`ip_vs_update_conntrack`,
    /// net/netfilter/ipvs/ip_vs_nfct.c), so the directions are compared.
    pub fn is_balanced(&self) -> bool {
        (self.reply.src, self.reply.src_port) != (self.orig.dst, self.orig.dst_port)
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |addr: Addr, port| SocketAddr::new(IpAddr::from(addr), port);
        write!(f, "{} -> {}", end(self.src, self.src_port), end(self.dst, self.dst_port))
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol {} {} (reply {})", self.orig.protocol, self.orig, self.reply)
    }
}

#[cfg(test)]
impl Flow {
    /// An entry of the default zone, without state.
    pub(crate) fn between(orig: Tuple, reply: Tuple) -> Self {
        Self { orig, reply, tcp: None, liberal: false, status: 0, zone: None, id: 0, timeout: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lies_in_the_zone_of_both_its_directions_or_in_none() {
        let end =
            Tuple { src: Addr::v4([0; 4]), dst: Addr::v4([0; 4]), src_port: 0, dst_port: 0, protocol: 17 };
        let flow = Flow::between(end, end);
        for (zone, at_home) in [
            (None, Some(0)),
            (Some(Zone::Both(7)), Some(7)),
            (Some(Zone::Original(7)), None),
            (Some(Zone::Reply(7)), None),
        ] {
            for of in [0, 7, 8] {
                assert_eq!(Flow { zone, ..flow }.is_in(of), at_home == Some(of), "{zone:?} in {of}");
            }
        }
    }
}
