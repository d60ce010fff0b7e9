//! Which part of the address space matters.
use std::{collections::BTreeSet, net::IpAddr};

use super::prefix::{Prefix, number};
use crate::Family;

/// Blocks of addresses that have nodes and backends: /16 of IPv4, /48 of IPv6. Of a full routing table only routes that touch these blocks are stored, and the
/// tables need not be read anew for a new pod in a known block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Blocks {
    v4: BTreeSet<u128>,
    v6: BTreeSet<u128>,
}

const V4: u8 = 16;
const V6: u8 = 48;

impl Blocks {
    /// Adds an address's block; says whether it is a new one.
    pub fn add(&mut self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.v4.insert(block(Family::V4, number(address))),
            IpAddr::V6(_) => self.v6.insert(block(Family::V6, number(address))),
        }
    }

    /// Whether all of the other's blocks are among these.
    pub fn have(&self, other: &Self) -> bool {
        other.v4.is_subset(&self.v4) && other.v6.is_subset(&self.v6)
    }

    /// Whether a range overlaps one of the blocks.
    pub fn touch(&self, range: Prefix) -> bool {
        let blocks = match range.family() {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let from = block(range.family(), range.first());
        blocks.range(from..=range.last()).next().is_some()
    }
}

fn block(family: Family, number: u128) -> u128 {
    let len = match family {
        Family::V4 => V4,
        Family::V6 => V6,
    };
    Prefix::of_number(family, number, len).first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_what_it_covers_or_lies_in() {
        let mut blocks = Blocks::default();
        assert!(blocks.add([10, 244, 3, 7].into()) && !blocks.add([10, 244, 9, 9].into()));
        assert!(blocks.add("fd00:1:2:3::4".parse().unwrap()));
        let touches = |address: &str, len| blocks.touch(Prefix::new(address.parse().unwrap(), len).unwrap());
        for (address, len) in [("0.0.0.0", 0), ("10.0.0.0", 8), ("10.244.77.0", 24), ("10.244.0.1", 32)] {
            assert!(touches(address, len), "{address}/{len}");
        }
        for (address, len) in [("10.245.0.0", 16), ("10.243.255.0", 24), ("128.0.0.0", 1), ("fd00:1:3::", 48)]
        {
            assert!(!touches(address, len), "{address}/{len}");
        }
        assert!(touches("::", 0) && touches("fd00:1:2:ff::", 64) && touches("fd00::", 8));
    }
}
