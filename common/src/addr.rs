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

    /// From four words as they lie in memory.
    #[inline(always)]
    pub const fn from_words(words: [u32; 4]) -> Self {
        let (a, b) = (words[0].to_ne_bytes(), words[1].to_ne_bytes());
        let (c, d) = (words[2].to_ne_bytes(), words[3].to_ne_bytes());
        Self {
            bytes: [
                a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2],
                d[3],
            ],
        }
    }

    /// The four words as they lie in memory; the last one is an IPv4 address.
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        let b = &self.bytes;
        [
            u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
            u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
        ]
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
