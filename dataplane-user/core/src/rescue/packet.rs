//! Makes of a packet as it left the packet as it came: pure, bytes in, bytes out.
use nodefence_common::packet::{
    self, Link, Reader as _, Skip, UDP_LEN, V4_LEN, V6_LEN, Window as _, at, eth_header, fold, marks,
    network, protocol, pseudo, sum_bytes, transport,
};
use thiserror::Error;

use crate::conntrack::Tuple;

/// Why a packet cannot be rescued. The kernel hands over packets that can be: these contradict themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unreadable {
    /// The packet ends inside a header.
    #[error("the packet ends too early")]
    Short,
    /// Options, extension headers or a fragment.
    #[error("options, extension headers or a fragment")]
    Extended,
    /// Neither TCP nor UDP over IPv4 or IPv6.
    #[error("neither TCP nor UDP")]
    Protocol,
    /// A length that no such header has, or that is not the packet's.
    #[error("a header's length is wrong")]
    Length,
}

impl From<Skip> for Unreadable {
    fn from(skip: Skip) -> Self {
        match skip {
            Skip::NotIp => Self::Protocol,
            Skip::Malformed => Self::Length,
            Skip::Short => Self::Short,
        }
    }
}

/// A TCP segment or a datagram with its IP header, without options or extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// From the IP header on, without link-layer padding.
    bytes: &'a [u8],
    /// Source and destination in the packet's headers.
    pub tuple: Tuple,
    /// TCP sequence number; 0 of a datagram.
    pub sequence: u32,
}

impl<'a> Packet<'a> {
    /// Reads a packet that starts with an IP header.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let v6 = match bytes.first().ok_or(Unreadable::Short)? >> 4 {
            4 => false,
            6 => true,
            _ => return Err(Unreadable::Protocol),
        };
        let mut read = packet::Packet::empty();
        network(&bytes, Link::None(0), 0, v6, &mut read)?;
        if read.is(marks::EXTENDED | marks::FRAGMENT) {
            return Err(Unreadable::Extended);
        }
        let body = read.payload as usize;
        transport(&bytes, &mut read)?;
        match read.protocol {
            protocol::TCP => {}
            protocol::UDP => {
                let udp = bytes.window::<UDP_LEN>(read.l4).ok_or(Unreadable::Short)?;
                if usize::from(udp.be16::<{ at::UDP_LENGTH }>()) != body {
                    return Err(Unreadable::Length);
                }
            }
            _ => return Err(Unreadable::Protocol),
        }
        let packet::Packet { src, dst, src_port, dst_port, protocol, seq, .. } = read;
        let tuple = Tuple { src, dst, src_port, dst_port, protocol };
        Ok(Self { bytes: &bytes[..read.l4 as usize + body], tuple, sequence: seq })
    }

    /// The conntrack tuple of an answer to the packet: by this its entry is found.
    pub fn reply(&self) -> Tuple {
        let Tuple { src, dst, src_port, dst_port, protocol } = self.tuple;
        Tuple { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol }
    }

    /// The packet with these ends, `hops` added to its TTL or hop limit, and checksums made from scratch: the old ones are not known here,
    /// since a device may have been left to make them. A packet that was damaged on its way does not become valid by this: conntrack checks
    /// checksums before it translates (`nf_conntrack_checksum`).
    ///
    /// `None` where the ends are of another IP version or protocol: conntrack does not translate from one to another.
    pub fn between(&self, ends: &Tuple, hops: u8) -> Option<Vec<u8>> {
        if ends.protocol != self.tuple.protocol {
            return None;
        }
        let mut out = self.bytes.to_vec();
        let header = match (self.tuple.src.as_v4(), ends.src.as_v4(), ends.dst.as_v4()) {
            (Some(_), Some(src), Some(dst)) => {
                out[at::V4_TTL] = out[at::V4_TTL].saturating_add(hops);
                put(&mut out, at::V4_SRC, &src);
                put(&mut out, at::V4_DST, &dst);
                put(&mut out, at::V4_CHECK, &[0, 0]);
                let check = !fold(sum_bytes(&out[..V4_LEN]));
                put(&mut out, at::V4_CHECK, &check.to_ne_bytes());
                V4_LEN
            }
            (None, None, None) => {
                out[at::V6_HOPS] = out[at::V6_HOPS].saturating_add(hops);
                put(&mut out, at::V6_SRC, &ends.src.bytes);
                put(&mut out, at::V6_DST, &ends.dst.bytes);
                V6_LEN
            }
            _ => return None,
        };
        let l4 = &mut out[header..];
        put(l4, 0, &ends.src_port.to_be_bytes());
        put(l4, 2, &ends.dst_port.to_be_bytes());
        let field = if ends.protocol == protocol::TCP { at::TCP_CHECK } else { at::UDP_CHECK };
        put(l4, field, &[0, 0]);
        let pseudo = pseudo(&ends.src, &ends.dst, ends.protocol, l4.len() as u32);
        let mut check = !fold(pseudo + sum_bytes(l4));
        if ends.protocol == protocol::UDP && check == 0 {
            // A checksum of zero says that there is none (RFC 768).
            check = 0xffff;
        }
        put(l4, field, &check.to_ne_bytes());
        Some(out)
    }
}

/// The packet in an Ethernet frame to the device with this address. The sender's address does not matter: nobody learns from frames that
/// are put in above the link layer.
pub fn ethernet(to: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    // Locally administered, no group.
    [&eth_header(to, [2, 0, 0, 0, 0, 1], v6), packet].concat()
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests;
