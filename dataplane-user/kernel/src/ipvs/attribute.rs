//! One attribute of any kind, to write.
use netlink_packet_core::{DefaultNla, NLA_F_NESTED, NLA_HEADER_SIZE, Nla as _};

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

impl Attribute<'_> {
    /// Writes it behind what is there: `struct nlattr`, value, padding. By hand: where all destinations of all services are asked for, the crate's
    /// emitter took half as long as reading the answers.
    pub(super) fn append(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.kind.to_ne_bytes());
        match &self.value {
            Value::Short(bytes, len) => out.extend_from_slice(&bytes[..*len]),
            Value::Text(text) => {
                out.extend_from_slice(text.as_bytes());
                out.push(0);
            }
            Value::Nest(inside) => inside.iter().for_each(|attribute| attribute.append(out)),
            Value::Kept(attribute) => {
                out.resize(at + NLA_HEADER_SIZE + attribute.value_len(), 0);
                attribute.emit_value(&mut out[at + NLA_HEADER_SIZE..]);
            }
        }
        let len = (out.len() - at) as u16;
        out[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        out.resize(out.len().next_multiple_of(4), 0);
    }
}
