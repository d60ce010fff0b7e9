//! Reads a captured head as far as an answer needs it.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nodefence_common::{
    Event,
    ipv6::{FRAGMENT, MAX_EXTENSIONS, ROUTING, is_extension},
};
use thiserror::Error;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Why a packet gets no answer. It has been dropped already; the injector counts it and forgets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unanswerable {
    /// The event is not a request for an answer.
    #[error("event kind {0} asks for no answer")]
    Kind(u32),
    /// The captured bytes end inside a header.
    #[error("the captured {0} bytes end inside the {1} header")]
    Truncated(usize, &'static str),
    /// A header says what no sender may say.
    #[error("{0}")]
    Malformed(&'static str),
    /// A rule forbids an answer (RFC 1122 section 3.2.2, RFC 9293 section 3.10.7.1).
    #[error("never answered: {0}")]
    Never(&'static str),
    /// Neither TCP nor UDP.
    #[error("IP protocol {0} has no answer")]
    Protocol(u8),
}

/// A captured packet from its IP header on.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) transport: Transport,
    /// The captured bytes from the IP header on, without link-layer padding.
    pub(super) bytes: &'a [u8],
}

#[derive(Debug)]
pub(super) enum Transport {
    Tcp(Segment),
    /// A UDP header was captured whole; its content is quoted, not read.
    Udp,
}

/// What of a TCP header decides the answer.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) payload_len: u32,
}

impl<'a> Packet<'a> {
    pub(super) fn is_v4(&self) -> bool {
        self.src.is_ipv4()
    }

    pub(super) fn parse(event: &'a Event) -> Result<Self, Unanswerable> {
        let head = event.packet();
        let l3 = usize::from(event.l3_offset);
        let bytes = head.get(l3..).ok_or(Unanswerable::Truncated(head.len(), "link"))?;
        // BIG TCP leaves the length field 0 (IPv6 since 5.19, IPv4 since 6.3): the packet's own length counts then.
        let whole = usize::try_from(event.packet_len).unwrap_or(usize::MAX).saturating_sub(l3);
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => Self::parse_v4(bytes, whole),
            Some(6) => Self::parse_v6(bytes, whole),
            Some(_) => Err(Unanswerable::Malformed("neither IPv4 nor IPv6")),
            None => Err(Unanswerable::Truncated(head.len(), "IP")),
        }
    }

    fn parse_v4(bytes: &'a [u8], whole: usize) -> Result<Self, Unanswerable> {
        let header: &[u8; 20] = bytes.first_chunk().ok_or(Unanswerable::Truncated(bytes.len(), "IPv4"))?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        if header_len < 20 {
            return Err(Unanswerable::Malformed("IPv4 header shorter than 20 bytes"));
        }
        let total = match usize::from(be16(header, 2)) {
            0 => whole,
            total => total,
        };
        if be16(header, 6) & 0x3fff != 0 {
            return Err(Unanswerable::Never("a fragment"));
        }
        let src = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
        let dst = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
        if src.is_unspecified() || src.is_multicast() || src.is_broadcast() {
            return Err(Unanswerable::Never("the source is no single host"));
        }
        if dst.is_multicast() || dst.is_broadcast() {
            return Err(Unanswerable::Never("multicast or broadcast"));
        }
        Self::with_transport(bytes, header[9], header_len, total, src.into(), dst.into())
    }

    fn parse_v6(bytes: &'a [u8], whole: usize) -> Result<Self, Unanswerable> {
        let header: &[u8; 40] = bytes.first_chunk().ok_or(Unanswerable::Truncated(bytes.len(), "IPv6"))?;
        let total = match usize::from(be16(header, 4)) {
            0 => whole,
            payload => payload + 40,
        };
        let src = Ipv6Addr::from(*bytes[8..].first_chunk::<16>().unwrap_or(&[0; 16]));
        let dst = Ipv6Addr::from(*bytes[24..].first_chunk::<16>().unwrap_or(&[0; 16]));
        if src.is_unspecified() || src.is_multicast() {
            return Err(Unanswerable::Never("the source is no single host"));
        }
        if dst.is_multicast() {
            return Err(Unanswerable::Never("multicast or broadcast"));
        }
        let (protocol, offset) = walk_extensions(bytes, header[6])?;
        Self::with_transport(bytes, protocol, offset, total, src.into(), dst.into())
    }

    fn with_transport(
        bytes: &'a [u8],
        protocol: u8,
        offset: usize,
        total: usize,
        src: IpAddr,
        dst: IpAddr,
    ) -> Result<Self, Unanswerable> {
        let bytes = &bytes[..bytes.len().min(total)];
        let l4 = bytes.get(offset..).ok_or(Unanswerable::Truncated(bytes.len(), "IP"))?;
        let transport = match protocol {
            TCP => Transport::Tcp(Segment::parse(l4, total - offset)?),
            UDP if l4.len() >= 8 => Transport::Udp,
            UDP => return Err(Unanswerable::Truncated(bytes.len(), "UDP")),
            other => return Err(Unanswerable::Protocol(other)),
        };
        Ok(Self { src, dst, transport, bytes })
    }
}

impl Segment {
    /// `len` is the segment's whole length, header included; `l4` may be less (it is what was captured).
    fn parse(l4: &[u8], len: usize) -> Result<Self, Unanswerable> {
        let header: &[u8; 20] = l4.first_chunk().ok_or(Unanswerable::Truncated(l4.len(), "TCP"))?;
        let header_len = usize::from(header[12] >> 4) * 4;
        if header_len < 20 || header_len > len {
            return Err(Unanswerable::Malformed("TCP data offset outside the segment"));
        }
        Ok(Self {
            src_port: be16(header, 0),
            dst_port: be16(header, 2),
            seq: be32(header, 4),
            ack: be32(header, 8),
            flags: header[13],
            payload_len: u32::try_from(len - header_len).unwrap_or(u32::MAX),
        })
    }
}

/// Transport protocol and its offset behind the extension headers.
fn walk_extensions(bytes: &[u8], mut next: u8) -> Result<(u8, usize), Unanswerable> {
    let mut offset = 40;
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let extension: &[u8; 8] = bytes
            .get(offset..)
            .and_then(<[u8]>::first_chunk)
            .ok_or(Unanswerable::Truncated(bytes.len(), "IPv6 extension"))?;
        let units = match next {
            ROUTING if extension[3] != 0 => {
                return Err(Unanswerable::Never("a source route with segments left"));
            }
            // Offset 0 and no more to come make an atomic fragment, which is none (RFC 6946).
            FRAGMENT if be16(extension, 2) & 0xfff9 != 0 => return Err(Unanswerable::Never("a fragment")),
            FRAGMENT => 0,
            _ => usize::from(extension[1]),
        };
        offset += (units + 1) * 8;
        next = extension[0];
    }
    if is_extension(next) {
        return Err(Unanswerable::Malformed("too many IPv6 extension headers"));
    }
    Ok((next, offset))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
