//! Writes and reads netlink messages and attributes (include/uapi/linux/netlink.h). A malformed one ends its list. This module
//! knows no netlink family and touches no socket.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NLA_TYPE_MASK, NetlinkBuffer};

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;

/// The whole messages of a datagram, up to the first malformed one. Read by hand, since the crate's own check reads the header
/// more than once.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let this = bytes.get(..len).filter(|this| this.len() >= HEADER_LEN)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkBuffer::new(this))
    })
}

/// The first attribute of `bytes` (`struct nlattr`, include/uapi/linux/netlink.h): its type with the flags in it, its value, and
/// the bytes after it. `None` where the attribute is malformed. Read by hand, since a large table has millions of attributes and
/// the crate's iterator took twice as long.
pub(crate) fn split_attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    let value = bytes.get(NLA_HEADER_SIZE..len)?;
    Some((kind, value, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes of `bytes`, without flags in their types, up to the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (kind, value, rest) = split_attribute(bytes)?;
        bytes = rest;
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// A number in the machine's byte order at the beginning of `bytes`.
pub(crate) fn u16_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.first_chunk()?))
}

/// A number in the machine's byte order at the beginning of `bytes`.
pub(crate) fn u32_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

/// An attribute's text without its closing zero.
pub(crate) fn text_of(value: &[u8]) -> String {
    String::from_utf8_lossy(before_zero(value)).into_owned()
}

/// An attribute's text without its closing zero, where it is UTF-8.
pub(crate) fn str_of(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(before_zero(value)).ok()
}

fn before_zero(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The address in an attribute, whose length tells the family.
pub(crate) fn address_of(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// A message: `struct nlmsghdr`, and what `body` adds.
pub(crate) fn message(kind: u16, flags: u16, sequence: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; HEADER_LEN];
    body(&mut out);
    let len = out.len() as u32;
    let mut header = NetlinkBuffer::new(&mut out);
    header.set_length(len);
    header.set_message_type(kind);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    out
}

/// Adds an attribute.
pub(crate) fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((value.len() + NLA_HEADER_SIZE) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Adds a text with its closing zero.
pub(crate) fn put_text(out: &mut Vec<u8>, kind: u16, value: &str) {
    put(out, kind, &[value.as_bytes(), &[0]].concat());
}

/// Adds an attribute that consists of attributes.
pub(crate) fn nest(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    put(out, kind | NLA_F_NESTED, &[]);
    body(out);
    let len = (out.len() - at) as u16;
    out[at..at + 2].copy_from_slice(&len.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_REQUEST;

    use super::*;

    #[test]
    fn attributes_come_back_as_written() {
        let request = message(44, NLM_F_REQUEST, 1, |out| {
            put_text(out, 1, "bpf");
            nest(out, 2, |out| {
                put(out, 6, &5_u32.to_ne_bytes());
                put_text(out, 7, "a name");
            });
        });
        let list: Vec<_> = attributes(&request[HEADER_LEN..]).collect();
        assert_eq!(list[0], (1, &b"bpf\0"[..]));
        assert_eq!(list[1].0, 2);
        let inner: Vec<_> = attributes(list[1].1).collect();
        assert_eq!(inner, [(6, &5_u32.to_ne_bytes()[..]), (7, &b"a name\0"[..])]);
        assert_eq!(text_of(inner[1].1), "a name");
    }

    #[test]
    fn broken_attributes_end_the_list() {
        for bytes in [&[][..], &[0, 0, 0, 0], &[3, 0, 1, 0], &[9, 0, 1, 0, 1, 2, 3, 4], &[255, 255, 1]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
    }
}
