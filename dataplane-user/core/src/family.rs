//! The two versions of IP.
use std::net::IpAddr;

/// An IP version, by Linux' number (`AF_INET`, `AF_INET6`). kube-proxy keeps the two apart: endpoints of one are never used for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = 2,
    /// IPv6.
    V6 = 10,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// By its number.
    pub fn from_raw(raw: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|family| *family as u16 == raw)
    }

    /// The family of an address.
    pub fn of(address: impl Into<IpAddr>) -> Self {
        if address.into().is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Bits of an address.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}
