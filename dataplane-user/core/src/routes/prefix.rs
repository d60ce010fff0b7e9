//! Ranges of addresses, of both families alike.
use std::{fmt, net::IpAddr};

use crate::Family;

/// An address as a number, its first bit the highest whatever its family is.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    family: Family,
    first: u128,
    len: u8,
}

impl Prefix {
    /// The range of `len` bits that has `address`; `None` where the address has fewer bits.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let family = Family::of(address);
        (len <= family.bits()).then(|| Self { family, first: number(address) & mask(len), len })
    }

    /// All addresses of a family.
    pub fn all(family: Family) -> Self {
        Self { family, first: 0, len: 0 }
    }

    /// The range of `len` bits that has this address of this family. `len` is at most the family's number of bits.
    pub(super) fn of_number(family: Family, number: u128, len: u8) -> Self {
        Self { family, first: number & mask(len), len }
    }

    /// Its IP version.
    pub fn family(self) -> Family {
        self.family
    }

    /// Its length in bits.
    pub fn bits(self) -> u8 {
        self.len
    }

    /// Its first address.
    pub fn address(self) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::V4(((self.first >> 96) as u32).into()),
            Family::V6 => IpAddr::V6(self.first.into()),
        }
    }

    /// Its first address, as a number.
    pub(super) fn first(self) -> u128 {
        self.first
    }

    /// Its last address, as a number. All bits behind the 32 of an IPv4 address are set: numbers between two IPv4 addresses do not matter.
    pub(super) fn last(self) -> u128 {
        self.first | !mask(self.len)
    }

    /// Whether an address of its family is in the range.
    pub(super) fn has(self, number: u128) -> bool {
        (number ^ self.first) & mask(self.len) == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.len)
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    #[test]
    fn ranges_have_what_begins_with_their_bits() {
        let has = |range: &str, address: &str| prefix(range).has(number(address.parse().unwrap()));
        assert!(has("10.1.0.0/16", "10.1.255.255") && !has("10.1.0.0/16", "10.2.0.0"));
        assert!(has("0.0.0.0/0", "255.255.255.255") && has("10.0.0.1/32", "10.0.0.1"));
        assert!(!has("10.0.0.1/32", "10.0.0.0"));
        assert!(has("fd00::/8", "fdff::1") && !has("fd00::1/128", "fd00::2"));
        assert_eq!(prefix("10.1.2.3/16"), prefix("10.1.0.0/16"));
        assert_eq!(Prefix::new([10, 0, 0, 1].into(), 33), None);
        assert_eq!(prefix("10.1.0.0/16").last(), prefix("10.2.0.0/16").first() - 1);
        assert_eq!(prefix("::/0").last(), u128::MAX);
    }
}
