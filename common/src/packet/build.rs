//! The headers of what is sent, checksums included. Each is small enough for the stack of a kernel program.
use super::{
    ETH_IPV4, ETH_IPV6, ETH_LEN, ICMP_LEN, TCP_LEN, V4_LEN, V6_LEN,
    sum::{fold, sum},
};
use crate::Addr;

/// Lifetime of what is sent.
const TTL: u8 = 64;

/// How the checksum of a TCP header is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sum {
    /// Complete.
    Full,
    /// The pseudo header's sum, not complemented: the device adds the rest (CHECKSUM_PARTIAL, `tcp_v4_send_check` in
    /// net/ipv4/tcp_ipv4.c, Linux 6.12).
    Pseudo,
}

/// A TCP header without options and without payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// [`super::tcp_flags`].
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
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

/// A TCP header; `pseudo` is the sum of its pseudo header.
#[inline(always)]
pub fn tcp_header(tcp: &TcpHeader, pseudo: u64, how: Sum) -> [u32; TCP_LEN / 4] {
    let window = tcp.window.to_be_bytes();
    let mut out = [
        halves(tcp.src_port, tcp.dst_port),
        tcp.seq.to_be(),
        tcp.ack.to_be(),
        word([5 << 4, tcp.flags, window[0], window[1]]),
        0,
    ];
    let check = match how {
        Sum::Pseudo => fold(pseudo),
        Sum::Full => !fold(pseudo + sum(&out)),
    };
    out[4] = check_with(check, 0);
    out
}

/// IPv4 header with `body` bytes of a protocol behind it: DF, id 0 (RFC 6864 section 4.1).
#[inline(always)]
pub fn v4_header(src: &Addr, dst: &Addr, tos: u8, protocol: u8, body: usize) -> [u32; V4_LEN / 4] {
    let len = ((V4_LEN + body) as u16).to_be_bytes();
    let (src, dst) = (src.words()[3], dst.words()[3]);
    let mut out =
        [word([0x45, tos, len[0], len[1]]), word([0, 0, 0x40, 0]), word([TTL, protocol, 0, 0]), src, dst];
    out[2] = with_check(out[2], !fold(sum(&out)));
    out
}

/// IPv6 header with `body` bytes of a protocol behind it.
#[inline(always)]
pub fn v6_header(src: &Addr, dst: &Addr, protocol: u8, body: usize) -> [u32; V6_LEN / 4] {
    let len = (body as u16).to_be_bytes();
    let (s, d) = (src.words(), dst.words());
    let next = word([len[0], len[1], protocol, TTL]);
    [word([0x60, 0, 0, 0]), next, s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]]
}

/// Header of a port unreachable: ICMP type 3, code 3 (RFC 792), or ICMPv6 type 1, code 4 (RFC 4443 section 3.1). `total` is the sum of what is
/// quoted behind it and, for ICMPv6, of the pseudo header.
#[inline(always)]
pub const fn port_unreachable(v6: bool, total: u64) -> [u32; ICMP_LEN / 4] {
    let first = if v6 { word([1, 4, 0, 0]) } else { word([3, 3, 0, 0]) };
    [with_check(first, !fold(first as u64 + total)), 0]
}

/// An Ethernet header without tags, before an IP header.
pub fn eth_header(dst: [u8; 6], src: [u8; 6], v6: bool) -> [u8; ETH_LEN] {
    let ethertype = if v6 { ETH_IPV6 } else { ETH_IPV4 };
    let mut out = [0; ETH_LEN];
    out[..6].copy_from_slice(&dst);
    out[6..12].copy_from_slice(&src);
    out[12..].copy_from_slice(&ethertype.to_be_bytes());
    out
}

/// The two MAC addresses of an Ethernet header, swapped.
#[inline(always)]
pub const fn swap_macs(macs: [u32; 3]) -> [u32; 3] {
    let (a, b, c) = (macs[0].to_ne_bytes(), macs[1].to_ne_bytes(), macs[2].to_ne_bytes());
    [word([b[2], b[3], c[0], c[1]]), word([c[2], c[3], a[0], a[1]]), word([a[2], a[3], b[0], b[1]])]
}
