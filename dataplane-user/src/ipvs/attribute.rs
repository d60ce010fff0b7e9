//! One attribute of any kind, to write with netlink-packet-core's own emitter.
use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, Nla};

/// An attribute to write.
#[derive(Debug)]
pub(super) struct Attribute<'a> {
    kind: u16,
    value: Value<'a>,
}

#[derive(Debug)]
enum Value<'a> {
    /// Up to 16 bytes; how many.
    Short([u8; 16], usize),
    /// Closed by a zero.
    Text(&'a str),
    Nest(Vec<Attribute<'a>>),
    /// As it was read.
    Kept(&'a DefaultNla),
}

impl<'a> Attribute<'a> {
    /// A number or an address in its bytes.
    pub(super) fn bytes<const N: usize>(kind: u16, bytes: [u8; N]) -> Self {
        const { assert!(N <= 16) };
        let mut room = [0; 16];
        room[..N].copy_from_slice(&bytes);
        Self { kind, value: Value::Short(room, N) }
    }

    pub(super) fn u32(kind: u16, value: u32) -> Self {
        Self::bytes(kind, value.to_ne_bytes())
    }

    pub(super) fn text(kind: u16, text: &'a str) -> Self {
        Self { kind, value: Value::Text(text) }
    }

    pub(super) fn nest(kind: u16, inside: Vec<Self>) -> Self {
        Self { kind: kind | NLA_F_NESTED, value: Value::Nest(inside) }
    }

    pub(super) fn kept(attribute: &'a DefaultNla) -> Self {
        Self { kind: attribute.kind(), value: Value::Kept(attribute) }
    }
}

impl Nla for Attribute<'_> {
    fn value_len(&self) -> usize {
        match &self.value {
            Value::Short(_, len) => *len,
            Value::Text(text) => text.len() + 1,
            Value::Nest(inside) => inside.as_slice().buffer_len(),
            Value::Kept(attribute) => attribute.value_len(),
        }
    }

    fn kind(&self) -> u16 {
        self.kind
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        match &self.value {
            Value::Short(bytes, len) => buffer.copy_from_slice(&bytes[..*len]),
            Value::Text(text) => {
                buffer[..text.len()].copy_from_slice(text.as_bytes());
                buffer[text.len()] = 0;
            }
            Value::Nest(inside) => inside.as_slice().emit(buffer),
            Value::Kept(attribute) => attribute.emit_value(buffer),
        }
    }
}
