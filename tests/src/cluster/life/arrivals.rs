//! How many packets of the clients arrive at the pods of a node, as the node's own kernel counts them.
//!
//! The counters are rules of a table of the test's own. They see a packet as it comes from the wire, with the pod's address as its destination. The programs of
//! nodefence run on the nodes that send.

use anyhow::{Context as _, Result};

use super::super::{KubeCluster, wire};
use crate::incident::manifests::{TCP_TARGET, UDP_TARGET};

/// The names of the counters, each with what it counts: what is sent to the servers' port. The controller, which may be on the node too, has no such port.
const COUNTERS: [(&str, &str, u16); 2] = [("segments", "tcp", TCP_TARGET), ("datagrams", "udp", UDP_TARGET)];

/// How many packets have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrived {
    /// Segments of TCP.
    pub(super) tcp: u64,
    /// Datagrams of UDP.
    pub(super) udp: u64,
}

impl Arrived {
    /// How many came since then.
    pub(super) fn since(self, before: Self) -> Self {
        Self { tcp: self.tcp.saturating_sub(before.tcp), udp: self.udp.saturating_sub(before.udp) }
    }
}

impl std::fmt::Display for Arrived {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} segments and {} datagrams", self.tcp, self.udp)
    }
}

/// Counts from now on. What an earlier call counted is gone.
pub(super) fn count(cluster: &KubeCluster, node: &str) -> Result<()> {
    let number = wire::number(node).with_context(|| format!("no node {node}"))?;
    cluster.on(node, &format!("nft -f - <<'RULES'\n{}RULES", rules(&wire::pods(number)))).map(drop)
}

/// Counts no more.
pub(super) fn end(cluster: &KubeCluster, node: &str) -> Result<()> {
    cluster.on(node, "nft delete table ip arrivals").map(drop)
}

/// What was counted so far.
pub(super) fn read(cluster: &KubeCluster, node: &str) -> Result<Arrived> {
    parse(&cluster.on(node, "nft list counters table ip arrivals")?)
}

/// The table, for `nft`: at the first hook behind the card, before connections are tracked.
fn rules(pods: &str) -> String {
    let mut text = "table ip arrivals\ndelete table ip arrivals\ntable ip arrivals {\n".to_owned();
    for (name, _, _) in COUNTERS {
        text += &format!("  counter {name} {{ }}\n");
    }
    text += "  chain arrive {\n    type filter hook prerouting priority -400; policy accept;\n";
    for (name, protocol, port) in COUNTERS {
        text += &format!("    iifname eth0 ip daddr {pods} {protocol} dport {port} counter name {name}\n");
    }
    text + "  }\n}\n"
}

/// Reads what `nft list counters` prints.
fn parse(listing: &str) -> Result<Arrived> {
    let of = |name: &str| {
        let (_, rest) = listing.split_once(&format!("counter {name} {{"))?;
        let mut words = rest.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1)?.parse().ok()
    };
    let count = |name: &str| of(name).with_context(|| format!("no counter {name} in {listing:?}"));
    Ok(Arrived { tcp: count(COUNTERS[0].0)?, udp: count(COUNTERS[1].0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_read_by_its_name() {
        let listing = "table ip arrivals {\n\tcounter segments {\n\t\tpackets 12 bytes 720\n\t}\n\tcounter datagrams {\n\t\tpackets 3 bytes 99\n\t}\n}\n";
        let arrived = parse(listing).expect("two counters");
        assert_eq!(arrived, Arrived { tcp: 12, udp: 3 });
        assert_eq!(arrived.since(Arrived { tcp: 10, udp: 3 }).to_string(), "2 segments and 0 datagrams");
        for broken in ["", "counter segments { packets 1 bytes 2 }", &listing.replace("packets", "lost")] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_rules_name_the_pods_and_each_counter() {
        let rules = rules("10.244.2.0/24");
        for rule in [
            "  counter segments { }\n",
            "  counter datagrams { }\n",
            "    iifname eth0 ip daddr 10.244.2.0/24 tcp dport 8080 counter name segments\n",
            "    iifname eth0 ip daddr 10.244.2.0/24 udp dport 5300 counter name datagrams\n",
        ] {
            assert!(rules.contains(rule), "{rules}");
        }
    }
}
