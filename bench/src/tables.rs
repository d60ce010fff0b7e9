//! Fills the dataplane's maps directly, with nodes of 250 backends each.
use std::{borrow::BorrowMut, net::Ipv4Addr};

use anyhow::Context as _;
use aya::maps::{Array, HashMap, MapData};
use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, Verdict};

/// Backends of one node.
pub(crate) const PER_NODE: u32 = 250;

/// The `i`th backend's address: one /24 per node from 10.0.0.0 on.
pub(crate) fn backend(i: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + ((i / PER_NODE) << 8) + 1 + i % PER_NODE)
}

/// An address of no backend, scattered over 100.64.0.0/10.
pub(crate) fn stranger(i: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0000 | (i.wrapping_mul(0x9e37_79b1) & 0x003f_ffff))
}

/// Writes `count` backends, on nodes of generation 1.
pub(crate) fn fill_backends<T: BorrowMut<MapData>>(
    map: &mut HashMap<T, Addr, BackendEntry>,
    count: u32,
) -> anyhow::Result<()> {
    for i in 0..count {
        let entry = BackendEntry { node: i / PER_NODE, generation: 1, flags: 0 };
        map.insert(&Addr::from(std::net::IpAddr::from(backend(i))), &entry, 0)
            .with_context(|| format!("cannot insert backend {i} into the map `backends`"))?;
    }
    Ok(())
}

/// Gives the nodes of `count` backends this verdict, which never lapses.
pub(crate) fn fill_nodes<T: BorrowMut<MapData>>(
    map: &mut Array<T, NodeEntry>,
    count: u32,
    verdict: Verdict,
) -> anyhow::Result<()> {
    for node in 0..count.div_ceil(PER_NODE) {
        let entry = NodeEntry {
            verdict: verdict as u32,
            action: Action::Refuse as u32,
            until: u64::MAX,
            generation: 1,
            name: [0; 28],
        };
        map.set(node, &entry, 0).with_context(|| format!("cannot set entry {node} of the map `nodes`"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn backends_are_distinct_and_strangers_are_none() {
        let backends: HashSet<_> = (0..150_000).map(backend).collect();
        assert_eq!(backends.len(), 150_000);
        assert!((0..300_000).all(|index| !backends.contains(&stranger(index))));
    }
}
