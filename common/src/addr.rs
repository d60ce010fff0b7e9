/// An IP address as a map key: IPv6 as it is, IPv4 mapped (`::ffff:a.b.c.d`, RFC 4291 section 2.5.5.2), network order.
#[repr(C, align(4))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Addr {
    /// The sixteen bytes in network order.
    pub bytes: [u8; 16],
}

impl Addr {
    /// From the four bytes of an IPv4 address.
    #[inline(always)]
    pub const fn v4(a: [u8; 4]) -> Self {
        Self { bytes: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]] }
    }

    /// From the sixteen bytes of an IPv6 address.
    #[inline(always)]
    pub const fn v6(bytes: [u8; 16]) -> Self {
        Self { bytes }
    }

    /// The IPv4 address, where this is a mapped one.
    pub fn as_v4(&self) -> Option<[u8; 4]> {
        match self.bytes {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }
}

impl From<core::net::IpAddr> for Addr {
    fn from(ip: core::net::IpAddr) -> Self {
        match ip {
            core::net::IpAddr::V4(v4) => Self::v4(v4.octets()),
            core::net::IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl From<Addr> for core::net::IpAddr {
    fn from(addr: Addr) -> Self {
        match addr.as_v4() {
            Some(v4) => core::net::IpAddr::V4(v4.into()),
            None => core::net::IpAddr::V6(addr.bytes.into()),
        }
    }
}

const _: () = assert!(size_of::<Addr>() == 16);
