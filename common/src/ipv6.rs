//! The IPv6 extension headers that are followed to the transport header, by the kernel programs and by the agent alike: what the one
//! hands over the other must be able to answer.

/// Extension headers of one packet that are followed at most.
pub const MAX_EXTENSIONS: usize = 6;

/// Next-header number of the routing header.
pub const ROUTING: u8 = 43;
/// Next-header number of the fragment header.
pub const FRAGMENT: u8 = 44;

/// Whether a next-header number is that of an extension header that is followed: hop-by-hop, routing, fragment and destination
/// options (RFC 8200 section 4), mobility, HIP, shim6.
#[inline(always)]
pub const fn is_extension(next: u8) -> bool {
    matches!(next, 0 | ROUTING | FRAGMENT | 60 | 135 | 139 | 140)
}
