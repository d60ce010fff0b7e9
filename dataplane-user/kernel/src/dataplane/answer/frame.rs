//! Builds the frames that are injected: full checksums, no options.
use std::net::IpAddr;

use nodefence_common::Event;

use super::parse::{Packet, Unanswerable};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERNET_LEN: usize = 14;
const HOP_LIMIT: u8 = 64;
/// Don't fragment, offset 0.
const DF: u16 = 0x4000;

/// TCP header flags (RFC 9293 section 3.1).
pub(crate) mod tcp_flags {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const ACK: u8 = 0x10;
}

/// The bytes ahead of the IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link(Vec<u8>);

impl Link {
    /// A plain Ethernet header; the ethertype is set with the addresses.
    pub(crate) fn ethernet(dst: [u8; 6], src: [u8; 6]) -> Self {
        let mut bytes = Vec::with_capacity(ETHERNET_LEN);
        bytes.extend_from_slice(&dst);
        bytes.extend_from_slice(&src);
        bytes.extend_from_slice(&[0, 0]);
        Self(bytes)
    }

    /// The header of an answer: MAC addresses swapped, VLAN tags kept, an accelerated tag put back in front of them.
    pub(super) fn answer_to(event: &Event, packet: &Packet<'_>) -> Result<Self, Unanswerable> {
        let l3 = usize::from(event.l3_offset);
        let ethertype = if packet.is_v4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        if l3 == 0 {
            let mut dummy = Self::ethernet([0; 6], [0; 6]);
            dummy.set_ethertype(ethertype);
            return Ok(dummy);
        }
        let head = event.packet();
        let link = head.get(..l3).ok_or(Unanswerable::Truncated(head.len(), "link"))?;
        if l3 < ETHERNET_LEN {
            return Err(Unanswerable::Malformed("link-layer header shorter than Ethernet"));
        }
        let mut bytes = Vec::with_capacity(l3 + 4);
        bytes.extend_from_slice(&link[6..12]);
        bytes.extend_from_slice(&link[..6]);
        if event.vlan_proto != 0 {
            bytes.extend_from_slice(&event.vlan_proto.to_be_bytes());
            bytes.extend_from_slice(&event.vlan_tci.to_be_bytes());
        }
        bytes.extend_from_slice(&link[12..]);
        Ok(Self(bytes))
    }

    /// The ethertype is the last field, whatever tags stand before it.
    fn set_ethertype(&mut self, ethertype: u16) {
        let at = self.0.len() - 2;
        self.0[at..].copy_from_slice(&ethertype.to_be_bytes());
    }
}

/// Source and destination of the frame; both of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
}

impl Addresses {
    /// Sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1), not folded.
    fn pseudo_sum(&self, protocol: u8, len: usize) -> u64 {
        let addresses = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => sum(&src.octets()) + sum(&dst.octets()),
            (src, dst) => sum(&v6(src)) + sum(&v6(dst)),
        };
        addresses + u64::from(protocol) + len as u64
    }

    /// Link and IP header for `len` bytes of `protocol`.
    fn headers(&self, link: &Link, protocol: u8, len: usize) -> Vec<u8> {
        let mut link = link.clone();
        let mut frame = Vec::with_capacity(link.0.len() + 40 + len);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                link.set_ethertype(ETHERTYPE_IPV4);
                frame.extend_from_slice(&link.0);
                let at = frame.len();
                frame.extend_from_slice(&[0x45, 0]);
                frame.extend_from_slice(&length(20 + len));
                frame.extend_from_slice(&[0, 0]);
                frame.extend_from_slice(&DF.to_be_bytes());
                frame.extend_from_slice(&[HOP_LIMIT, protocol, 0, 0]);
                frame.extend_from_slice(&src.octets());
                frame.extend_from_slice(&dst.octets());
                let check = fold(sum(&frame[at..]));
                frame[at + 10..at + 12].copy_from_slice(&check);
            }
            (src, dst) => {
                link.set_ethertype(ETHERTYPE_IPV6);
                frame.extend_from_slice(&link.0);
                frame.extend_from_slice(&[0x60, 0, 0, 0]);
                frame.extend_from_slice(&length(len));
                frame.extend_from_slice(&[protocol, HOP_LIMIT]);
                frame.extend_from_slice(&v6(src));
                frame.extend_from_slice(&v6(dst));
            }
        }
        frame
    }
}

/// A TCP header without options and without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpHeader {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
}

/// A frame with a bare TCP header.
pub(crate) fn tcp_frame(link: &Link, addresses: &Addresses, tcp: &TcpHeader) -> Vec<u8> {
    let mut frame = addresses.headers(link, 6, 20);
    let at = frame.len();
    frame.extend_from_slice(&tcp.src_port.to_be_bytes());
    frame.extend_from_slice(&tcp.dst_port.to_be_bytes());
    frame.extend_from_slice(&tcp.seq.to_be_bytes());
    frame.extend_from_slice(&tcp.ack.to_be_bytes());
    frame.extend_from_slice(&[0x50, tcp.flags]);
    frame.extend_from_slice(&tcp.window.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0]);
    let check = fold(sum(&frame[at..]) + addresses.pseudo_sum(6, 20));
    frame[at + 16..at + 18].copy_from_slice(&check);
    frame
}

/// A frame with an ICMP or ICMPv6 port unreachable (RFC 792, RFC 4443 section 3.1) that quotes the original packet.
pub(crate) fn icmp_unreachable(link: &Link, addresses: &Addresses, quoted: &[u8]) -> Vec<u8> {
    let len = 8 + quoted.len();
    let (protocol, kind, code, pseudo) = match addresses.src {
        IpAddr::V4(_) => (1, 3, 3, 0),
        IpAddr::V6(_) => (58, 1, 4, addresses.pseudo_sum(58, len)),
    };
    let mut frame = addresses.headers(link, protocol, len);
    let at = frame.len();
    frame.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    frame.extend_from_slice(quoted);
    let check = fold(sum(&frame[at..]) + pseudo);
    frame[at + 2..at + 4].copy_from_slice(&check);
    frame
}

fn v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// Sum of 16-bit words (RFC 1071); an odd last byte is the high half of a word.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u64::from(low))).sum()
}

fn fold(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
