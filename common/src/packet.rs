//! The headers of packets, for the kernel programs and for user space alike: where fields lie, how they are read, how those of an answer are
//! written, and their checksums. What the one side reads, the other reads the same way.
//!
//! Headers that are written are 32-bit words as they lie in memory: bytes would cost a kernel program a stack slot each.
mod build;
mod bytes;
mod parse;
mod sum;
mod transport;

pub use build::{Sum, TcpHeader, eth_header, port_unreachable, swap_macs, tcp_header, v4_header, v6_header};
pub use bytes::{Reader, Window};
pub use parse::{Ip, Link, Packet, Skip, locate, marks, network};
pub use sum::{fold, pseudo, sum, sum_bytes};
pub use transport::transport;

/// Ethertype of IPv4.
pub const ETH_IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const ETH_IPV6: u16 = 0x86dd;
/// Length of an Ethernet header.
pub const ETH_LEN: usize = 14;
/// Bytes of an IPv4 header without options.
pub const V4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const V6_LEN: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP_LEN: usize = 20;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// Bytes of an ICMP or ICMPv6 header.
pub const ICMP_LEN: usize = 8;

/// IP protocol numbers that the decision knows.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Flags of a TCP header (RFC 9293 section 3.1).
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 1;
    /// A connection is opened.
    pub const SYN: u8 = 2;
    /// The connection is reset.
    pub const RST: u8 = 4;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
}

/// Where fields lie, in bytes from the start of their header.
pub mod at {
    /// Lifetime in an IPv4 header.
    pub const V4_TTL: usize = 8;
    /// Checksum in an IPv4 header.
    pub const V4_CHECK: usize = 10;
    /// Sender in an IPv4 header.
    pub const V4_SRC: usize = 12;
    /// Receiver in an IPv4 header.
    pub const V4_DST: usize = 16;
    /// Hop limit in an IPv6 header.
    pub const V6_HOPS: usize = 7;
    /// Sender in an IPv6 header.
    pub const V6_SRC: usize = 8;
    /// Receiver in an IPv6 header.
    pub const V6_DST: usize = 24;
    /// Checksum in a TCP header.
    pub const TCP_CHECK: usize = 16;
    /// Length in a UDP header, itself included.
    pub const UDP_LENGTH: usize = 4;
    /// Checksum in a UDP header.
    pub const UDP_CHECK: usize = 6;
}
