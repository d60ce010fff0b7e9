//! The packet as it left, and as it came: pure, bytes in, bytes out.
use nodefence_common::Addr;
use thiserror::Error;

use crate::conntrack::Tuple;

const TCP: u8 = 6;
const UDP: u8 = 17;
const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Why a packet cannot be put in again. The kernel hands over what can: these are packets that contradict themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unreadable {
    /// The packet ends inside a header, or before the end that a header names.
    #[error("the packet ends too early")]
    Short,
    /// Options, extension headers or a fragment.
    #[error("options, extension headers or a fragment")]
    Extended,
    /// Neither TCP nor UDP over IPv4 or IPv6.
    #[error("neither TCP nor UDP")]
    Protocol,
    /// A length that no header of the kind has.
    #[error("a header's length is wrong")]
    Length,
}

/// A TCP segment or a datagram with its IP header, without options or extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// From the IP header on, without link-layer padding.
    bytes: &'a [u8],
    /// Source and destination as they stand in it.
    pub tuple: Tuple,
}

impl<'a> Packet<'a> {
    /// Reads what starts with an IP header.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        match bytes.first().ok_or(Unreadable::Short)? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => Err(Unreadable::Protocol),
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let header: &[u8; V4_LEN] = bytes.first_chunk().ok_or(Unreadable::Short)?;
        // More fragments, or an offset.
        if header[0] != 0x45 || be16(header, 6) & 0x3fff != 0 {
            return Err(Unreadable::Extended);
        }
        let total = usize::from(be16(header, 2));
        let bytes = bytes.get(..total).ok_or(Unreadable::Short)?;
        let [src, dst] = [12, 16].map(|at| Addr::v4([0, 1, 2, 3].map(|i| header[at + i])));
        Self::with_transport(bytes, V4_LEN, header[9], src, dst)
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let header: &[u8; V6_LEN] = bytes.first_chunk().ok_or(Unreadable::Short)?;
        let total = V6_LEN + usize::from(be16(header, 4));
        let bytes = bytes.get(..total).ok_or(Unreadable::Short)?;
        let [src, dst] = [8, 24].map(|at| Addr::v6(std::array::from_fn(|i| header[at + i])));
        Self::with_transport(bytes, V6_LEN, header[6], src, dst)
    }

    fn with_transport(
        bytes: &'a [u8],
        header: usize,
        protocol: u8,
        src: Addr,
        dst: Addr,
    ) -> Result<Self, Unreadable> {
        let l4 = bytes.get(header..).ok_or(Unreadable::Length)?;
        let sensible = match protocol {
            TCP if l4.len() >= 20 => (20..=l4.len()).contains(&(usize::from(l4[12] >> 4) * 4)),
            UDP if l4.len() >= 8 => usize::from(be16(l4, 4)) == l4.len(),
            TCP | UDP => return Err(Unreadable::Short),
            _ => return Err(Unreadable::Protocol),
        };
        if !sensible {
            return Err(Unreadable::Length);
        }
        let tuple = Tuple { src, dst, src_port: be16(l4, 0), dst_port: be16(l4, 2), protocol };
        Ok(Self { bytes, tuple })
    }

    /// The conntrack tuple of an answer to it: by this its entry is found.
    pub fn reply(&self) -> Tuple {
        let Tuple { src, dst, src_port, dst_port, protocol } = self.tuple;
        Tuple { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol }
    }

    /// The packet with these ends, `hops` added to what is left of its way (TTL, hop limit), and checksums made from scratch: what they
    /// were cannot be told from here, since a device may have been left to make them. A packet that was spoilt on its way does not become sound
    /// by it: conntrack looks at checksums before it translates (`nf_conntrack_checksum`).
    ///
    /// `None` where the ends are of another IP version or protocol: conntrack does not translate from one to another.
    pub fn between(&self, ends: &Tuple, hops: u8) -> Option<Vec<u8>> {
        if ends.protocol != self.tuple.protocol {
            return None;
        }
        let mut out = self.bytes.to_vec();
        let (header, pseudo) = match (self.tuple.src.as_v4(), ends.src.as_v4(), ends.dst.as_v4()) {
            (Some(_), Some(src), Some(dst)) => {
                out[8] = out[8].saturating_add(hops);
                out[10..12].fill(0);
                out[12..16].copy_from_slice(&src);
                out[16..20].copy_from_slice(&dst);
                let check = complement(sum(&out[..V4_LEN]));
                out[10..12].copy_from_slice(&check);
                (V4_LEN, sum(&out[12..20]))
            }
            (None, None, None) => {
                out[7] = out[7].saturating_add(hops);
                out[8..24].copy_from_slice(&ends.src.bytes);
                out[24..40].copy_from_slice(&ends.dst.bytes);
                (V6_LEN, sum(&out[8..40]))
            }
            _ => return None,
        };
        let l4 = &mut out[header..];
        l4[..2].copy_from_slice(&ends.src_port.to_be_bytes());
        l4[2..4].copy_from_slice(&ends.dst_port.to_be_bytes());
        let at = if ends.protocol == TCP { 16 } else { 6 };
        l4[at..at + 2].fill(0);
        let mut check = complement(sum(l4) + pseudo + u64::from(ends.protocol) + l4.len() as u64);
        if ends.protocol == UDP && check == [0, 0] {
            // Zero says that there is none (RFC 768).
            check = [0xff, 0xff];
        }
        l4[at..at + 2].copy_from_slice(&check);
        Some(out)
    }
}

/// The packet in an Ethernet frame to the device with this address. The sender's address is of no account: nobody learns from frames that
/// are put in above the link layer.
pub fn ethernet(to: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + packet.len());
    frame.extend_from_slice(&to);
    // Locally administered, no group.
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 1]);
    let six = packet.first().is_some_and(|first| first >> 4 == 6);
    frame.extend_from_slice(&if six { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Sum of 16-bit words (RFC 1071); an odd last byte is the high half of a word.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u64::from(low))).sum()
}

fn complement(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests;
