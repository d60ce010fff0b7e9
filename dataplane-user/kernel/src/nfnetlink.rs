//! Writes nfnetlink messages (include/uapi/linux/netfilter/nfnetlink.h).
use crate::netlink;

/// Length of `struct nfgenmsg`, which each message begins with.
pub(crate) const NFGEN_LEN: usize = 4;

/// A message with its `struct nfgenmsg`.
pub(crate) fn message(
    kind: u16,
    flags: u16,
    family: u8,
    resource: u16,
    sequence: u32,
    body: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    netlink::message(kind, flags, sequence, |out| {
        out.extend_from_slice(&[family, 0]);
        out.extend_from_slice(&resource.to_be_bytes());
        body(out);
    })
}
