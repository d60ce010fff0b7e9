//! Writes nfnetlink messages (include/uapi/linux/netfilter/nfnetlink.h).
use netlink_packet_core::{NLA_F_NESTED, NetlinkBuffer};

/// Length of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

/// A message with its `struct nfgenmsg`.
pub(crate) fn message(
    kind: u16,
    flags: u16,
    family: u8,
    resource: u16,
    sequence: u32,
    body: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut out = vec![0; HEADER_LEN];
    out.extend_from_slice(&[family, 0]);
    out.extend_from_slice(&resource.to_be_bytes());
    body(&mut out);
    let len = out.len() as u32;
    let mut header = NetlinkBuffer::new(&mut out);
    header.set_length(len);
    header.set_message_type(kind);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    out
}

/// An attribute.
pub(crate) fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// An attribute of attributes.
pub(crate) fn nest(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    put(out, kind | NLA_F_NESTED, &[]);
    body(out);
    let len = (out.len() - at) as u16;
    out[at..at + 2].copy_from_slice(&len.to_ne_bytes());
}
