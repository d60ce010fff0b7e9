//! The Internet checksum (RFC 1071): one's complement sums. The byte order does not matter: words that are summed as they lie in memory
//! give a sum that is stored as it is.
use crate::Addr;

/// Sum of words as they lie in memory, not folded.
#[inline(always)]
pub fn sum<const N: usize>(words: &[u32; N]) -> u64 {
    let mut total = 0;
    let mut i = 0;
    while i < N {
        total += u64::from(words[i]);
        i += 1;
    }
    total
}

/// As [`sum`], of bytes in 16-bit words; an odd last byte is the first half of a word.
pub fn sum_bytes(bytes: &[u8]) -> u64 {
    let word = |half: &[u8]| u16::from_ne_bytes([half[0], half.get(1).copied().unwrap_or(0)]);
    bytes.chunks(2).map(|half| u64::from(word(half))).sum()
}

/// A sum in 16 bits; its complement is the checksum.
#[inline(always)]
pub const fn fold(mut total: u64) -> u16 {
    total = (total & 0xffff_ffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total as u16
}

/// Sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1) for `len` bytes of a protocol, not folded. The prefix of a mapped IPv4
/// address adds 0xffff, which is zero in one's complement.
#[inline(always)]
pub fn pseudo(src: &Addr, dst: &Addr, protocol: u8, len: u32) -> u64 {
    sum(&src.words()) + sum(&dst.words()) + u64::from(u32::from(protocol).to_be()) + u64::from(len.to_be())
}
