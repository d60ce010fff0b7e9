//! The headers of an answer, checksums included. Each is small enough for the stack of a kernel program.
use crate::{
    decide::Answer,
    parse::{Packet, protocol, tcp_flags},
};

/// Bytes of an IPv4 header without options.
pub const V4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const V6_LEN: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP_LEN: usize = 20;
/// Bytes of an ICMP header.
pub const ICMP_LEN: usize = 8;
/// Bytes of the datagram's transport header that an ICMP error quotes (RFC 792; RFC 4443 asks for as much as fits, which
/// eight bytes satisfy for a host that looks the socket up).
pub const QUOTED: usize = 8;
/// Lifetime of an answer.
const TTL: u8 = 64;

/// How the checksum of a TCP answer is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sum {
    /// Complete.
    Full,
    /// The pseudo header's sum, not complemented: the device adds the rest (CHECKSUM_PARTIAL, `tcp_v4_send_check` in
    /// net/ipv4/tcp_ipv4.c, Linux 6.12).
    Pseudo,
}

/// Words of an IPv4 header without options. Headers are handled as 32-bit words as they lie in memory: bytes would cost a
/// kernel program a stack slot each.
pub const V4_WORDS: usize = V4_LEN / 4;
/// Words of an IPv6 header.
pub const V6_WORDS: usize = V6_LEN / 4;
/// Words of a TCP header without options.
pub const TCP_WORDS: usize = TCP_LEN / 4;
/// Words of an ICMP header.
pub const ICMP_WORDS: usize = ICMP_LEN / 4;

/// One's complement sum (RFC 1071) of words, not folded. The byte order does not matter to it: what is folded and stored as
/// it is lies right in memory.
#[inline(always)]
fn sum<const N: usize>(words: &[u32; N]) -> u64 {
    let mut total = 0;
    let mut i = 0;
    while i < N {
        total += u64::from(words[i]);
        i += 1;
    }
    total
}

#[inline(always)]
const fn fold(mut total: u64) -> u16 {
    total = (total & 0xffff_ffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total as u16
}

#[inline(always)]
const fn word(bytes: [u8; 4]) -> u32 {
    u32::from_ne_bytes(bytes)
}

#[inline(always)]
const fn halves(first: u16, second: u16) -> u32 {
    let (a, b) = (first.to_be_bytes(), second.to_be_bytes());
    word([a[0], a[1], b[0], b[1]])
}

/// Puts a folded sum, as it lies in memory, into the second half of a word.
#[inline(always)]
const fn with_check(word: u32, check: u16) -> u32 {
    let (w, c) = (word.to_ne_bytes(), check.to_ne_bytes());
    u32::from_ne_bytes([w[0], w[1], c[0], c[1]])
}

/// The same for the first half.
#[inline(always)]
const fn check_with(check: u16, word: u32) -> u32 {
    let (w, c) = (word.to_ne_bytes(), check.to_ne_bytes());
    u32::from_ne_bytes([c[0], c[1], w[2], w[3]])
}

/// Sum of the pseudo header of an answer to `packet` (addresses swapped, which the sum does not see).
#[inline(always)]
fn pseudo(packet: &Packet, next: u8, len: u32) -> u64 {
    let (s, d) = (packet.src.words(), packet.dst.words());
    let addresses = if packet.v6 { sum(&s) + sum(&d) } else { u64::from(s[3]) + u64::from(d[3]) };
    addresses + u64::from(word([0, 0, 0, next])) + u64::from(len.to_be())
}

/// TCP header of the answer to a segment: from the addressed port, window 0, no options.
#[inline(always)]
pub fn tcp(packet: &Packet, answer: Answer, how: Sum) -> [u32; TCP_WORDS] {
    let (seq, ack, flags) = match answer {
        Answer::Reset { seq } => (seq, 0, tcp_flags::RST),
        Answer::Refuse { ack } => (0, ack, tcp_flags::RST | tcp_flags::ACK),
        Answer::Unreachable => (0, 0, tcp_flags::RST),
    };
    let mut out =
        [halves(packet.dst_port, packet.src_port), seq.to_be(), ack.to_be(), word([5 << 4, flags, 0, 0]), 0];
    let pseudo = pseudo(packet, protocol::TCP, TCP_LEN as u32);
    let check = match how {
        Sum::Pseudo => fold(pseudo),
        Sum::Full => !fold(pseudo + sum(&out)),
    };
    out[4] = check_with(check, 0);
    out
}

/// IPv4 header of an answer with `body` bytes behind it: DF, id 0 (RFC 6864 section 4.1), from the packet's destination.
#[inline(always)]
pub fn v4_header(packet: &Packet, next: u8, body: usize) -> [u32; V4_WORDS] {
    let len = ((V4_LEN + body) as u16).to_be_bytes();
    // Precedence "internetwork control" for ICMP errors (RFC 1812 section 4.3.2.5).
    let tos = if next == protocol::ICMP { 0xc0 } else { 0 };
    let (from, to) = (packet.dst.words()[3], packet.src.words()[3]);
    let mut out =
        [word([0x45, tos, len[0], len[1]]), word([0, 0, 0x40, 0]), word([TTL, next, 0, 0]), from, to];
    out[2] = with_check(out[2], !fold(sum(&out)));
    out
}

/// IPv6 header of an answer with `body` bytes behind it.
#[inline(always)]
pub fn v6_header(packet: &Packet, next: u8, body: usize) -> [u32; V6_WORDS] {
    let len = (body as u16).to_be_bytes();
    let (from, to) = (packet.dst.words(), packet.src.words());
    [
        word([0x60, 0, 0, 0]),
        word([len[0], len[1], next, TTL]),
        from[0],
        from[1],
        from[2],
        from[3],
        to[0],
        to[1],
        to[2],
        to[3],
    ]
}

/// ICMP header of a port unreachable (type 3, code 3) that quotes the datagram's IPv4 header without options and
/// [`QUOTED`] bytes.
#[inline(always)]
pub fn icmp_v4(quoted: &[u32; V4_WORDS + QUOTED / 4]) -> [u32; ICMP_WORDS] {
    let first = word([3, 3, 0, 0]);
    [with_check(first, !fold(u64::from(first) + sum(quoted))), 0]
}

/// ICMPv6 header of a port unreachable (type 1, code 4) that quotes the datagram's IPv6 header and [`QUOTED`] bytes.
#[inline(always)]
pub fn icmp_v6(packet: &Packet, quoted: &[u32; V6_WORDS + QUOTED / 4]) -> [u32; ICMP_WORDS] {
    let first = word([1, 4, 0, 0]);
    let len = (ICMP_LEN + V6_LEN + QUOTED) as u32;
    let total = pseudo(packet, protocol::ICMPV6, len) + u64::from(first) + sum(quoted);
    [with_check(first, !fold(total)), 0]
}

/// The two MAC addresses of an Ethernet header, swapped.
#[inline(always)]
pub const fn swap_macs(macs: [u32; 3]) -> [u32; 3] {
    let (a, b, c) = (macs[0].to_ne_bytes(), macs[1].to_ne_bytes(), macs[2].to_ne_bytes());
    [word([b[2], b[3], c[0], c[1]]), word([c[2], c[3], a[0], a[1]]), word([a[2], a[3], b[0], b[1]])]
}
