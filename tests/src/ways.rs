//! Finds the next hop of packets that leave the calling thread's network namespace, from the tables that the agent reads.

use std::{collections::HashSet, net::IpAddr};

use anyhow::{Context as _, Result};
use nodefence::{
    dataplane::{
        hold::{FlaggedNode, Hop},
        interfaces, route_table,
    },
    routes::{Blocks, Policies},
};

/// The next hop to an address. `None` for this machine's own addresses and for unreachable ones.
pub fn next_hop(to: IpAddr) -> Result<Option<Hop>> {
    let mut blocks = Blocks::default();
    blocks.add(to);
    let devices = interfaces::list().context("list devices")?;
    let map = route_table::read(&blocks, &devices, Policies::default()).context("list routes")?;
    let ways = map.ways(to);
    let main = ways.main.filter(|_| !ways.local);
    Ok(main.map(|(ifindex, gateway)| Hop { ifindex, address: gateway.unwrap_or(to) }))
}

/// A node with these addresses, and the next hops to them.
pub fn flagged(own: HashSet<IpAddr>) -> Result<FlaggedNode> {
    let mut hops = Vec::new();
    for address in &own {
        hops.extend(next_hop(*address)?);
    }
    hops.sort_unstable();
    hops.dedup();
    Ok(FlaggedNode { own, hops })
}
