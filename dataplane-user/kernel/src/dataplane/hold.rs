//! Renews neighbour entries, so that packets to a flagged node reach the cut.
//!
//! A packet whose next hop has no usable neighbour entry dies before TC egress sees it. If a flagged node no longer answers ARP or ND, its
//! clients would hang instead of being reset. So while a node is flagged, the entry of the next hop that leads to its backends stays as it
//! was when it was last valid: it is NUD_REACHABLE, and is renewed each second. The entry is not NUD_PERMANENT, so that it ages like any
//! other entry when the agent dies. Only an entry whose next hop is the flagged node itself is held. A router's entry is never touched.
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{error::Error, netlink::Netlink};

mod neighbours;

pub use neighbours::Hop;

use neighbours::{Neighbour, State};

/// How long a link-layer address is remembered after its entry has left the table.
const MEMORY: Duration = Duration::from_secs(3_600);
/// How many addresses are remembered at most.
const MEMORY_MAX: usize = 65_536;

/// The addresses and next hops of a flagged node.
#[derive(Clone, Debug, Default)]
pub struct FlaggedNode {
    /// The node's own addresses and those of its backends.
    pub own: HashSet<IpAddr>,
    /// The next hops that lead to the node's backends.
    pub hops: Vec<Hop>,
}

/// What the agent does with the neighbour entry of a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "NeighbourState")]
pub enum Holding {
    /// The agent renews the entry. Packets reach the cut even if the link of the node is down.
    Held,
    /// The agent leaves the entry alone, because it needs no help: it is permanent, needs no resolution, or is kept by a daemon.
    Fixed,
    /// The agent leaves the entry alone, because the next hop is not the node (a router, for example). If the next hop fails, packets to every destination behind it are lost there.
    NotTheNode,
    /// The link-layer address was not seen since the agent started. Packets are lost before egress, and their senders get EHOSTUNREACH.
    Unknown,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "held: packets reach the cut even if its link is down",
            Self::Fixed => "needs no help",
            Self::NotTheNode => "a router, left alone: if it fails, packets die there",
            Self::Unknown => {
                "its link-layer address was never seen: packets die there, senders get EHOSTUNREACH"
            }
        })
    }
}

/// Holds neighbour entries. Each call blocks for a few milliseconds. Use it in the network namespace in which it was opened.
pub struct Hold {
    netlink: Netlink,
    remembered: HashMap<Hop, Remembered>,
    held: HashMap<Hop, Vec<u8>>,
}

struct Remembered {
    mac: Vec<u8>,
    seen: Instant,
}

impl Hold {
    /// Opens the socket.
    ///
    /// # Errors
    /// Fails if the kernel gives no route netlink socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open()?, remembered: HashMap::new(), held: HashMap::new() })
    }

    /// Call this once a second, also while no node is flagged: only an address that was seen before can be held.
    ///
    /// Remembers the link-layer addresses of all valid entries, and renews the entries of `flagged`. Releases the entries that were held
    /// for nodes that are no longer flagged. A released entry is STALE, so that the next packet has it checked.
    ///
    /// # Errors
    /// Fails if the table cannot be read or an entry cannot be written.
    pub fn tick(&mut self, flagged: &[FlaggedNode]) -> Result<BTreeMap<Hop, Holding>, Error> {
        let table = neighbours::list(&mut self.netlink)?;
        self.remember(&table, Instant::now());
        let forwarding = if flagged.iter().any(FlaggedNode::has_foreign_hop) {
            neighbours::forwarding(&mut self.netlink)?
        } else {
            HashMap::new()
        };
        let mut report = BTreeMap::new();
        for node in flagged {
            for &hop in &node.hops {
                let known = self.remembered.get(&hop).map(|known| &known.mac[..]);
                let holding = decide(node, hop, table.get(&hop), known, &forwarding);
                report.insert(hop, holding);
            }
        }
        let mut failed = None;
        for (&hop, &holding) in &report {
            if holding != Holding::Held {
                continue;
            }
            if let Some(known) = self.remembered.get_mut(&hop) {
                known.seen = Instant::now();
                let router = table.get(&hop).is_some_and(|entry| entry.router);
                match neighbours::set(&mut self.netlink, hop, &known.mac, State::REACHABLE, router) {
                    Ok(()) => drop(self.held.insert(hop, known.mac.clone())),
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
        }
        let over: Vec<Hop> =
            self.held.keys().filter(|hop| report.get(hop) != Some(&Holding::Held)).copied().collect();
        for hop in over {
            if let Err(error) = self.release(hop, table.get(&hop)) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(report), Err)
    }

    fn release(&mut self, hop: Hop, entry: Option<&Neighbour>) -> Result<(), Error> {
        let Some(mac) = self.held.remove(&hop) else { return Ok(()) };
        // If another process has written the entry since, the entry is left as it is.
        match entry {
            Some(entry) if entry.state == State::REACHABLE && entry.mac == mac => {
                neighbours::set(&mut self.netlink, hop, &mac, State::STALE, entry.router)
            }
            _ => Ok(()),
        }
    }

    fn remember(&mut self, table: &HashMap<Hop, Neighbour>, now: Instant) {
        for (&hop, entry) in table.iter().filter(|(_, entry)| entry.is_valid()) {
            if self.remembered.len() < MEMORY_MAX || self.remembered.contains_key(&hop) {
                self.remembered.insert(hop, Remembered { mac: entry.mac.clone(), seen: now });
            }
        }
        self.remembered.retain(|_, known| now.saturating_duration_since(known.seen) < MEMORY);
    }
}

impl FlaggedNode {
    /// Whether a next hop is neither the node nor one of its backends. Only the forwarding table tells whether such a hop leads to the
    /// node.
    fn has_foreign_hop(&self) -> bool {
        self.hops.iter().any(|hop| !self.own.contains(&hop.address))
    }
}

/// What to do for one next hop. `forwarding` has, for each tunnel device and MAC address, the remote address to which the device sends.
fn decide(
    node: &FlaggedNode,
    hop: Hop,
    entry: Option<&Neighbour>,
    known: Option<&[u8]>,
    forwarding: &HashMap<(u32, Vec<u8>), IpAddr>,
) -> Holding {
    if entry.is_some_and(Neighbour::is_fixed) {
        return Holding::Fixed;
    }
    let is_node = node.own.contains(&hop.address)
        || known.is_some_and(|mac| {
            forwarding.get(&(hop.ifindex, mac.to_vec())).is_some_and(|behind| node.own.contains(behind))
        });
    match known {
        _ if !is_node && known.is_some() => Holding::NotTheNode,
        None if !node.own.contains(&hop.address) => Holding::NotTheNode,
        None => Holding::Unknown,
        Some(_) => Holding::Held,
    }
}

#[cfg(test)]
mod tests;
