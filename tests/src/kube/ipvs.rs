//! Reads kube-proxy's virtual servers from `ipvsadm -S -n`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use anyhow::{Context as _, Result, bail};
use nodefence::cluster::Family;

use super::way::{Virtual, Way};

/// Virtual servers by protocol and address. Each has the real servers that get new connections, which are those with a weight.
#[derive(Debug, Default)]
pub struct Table(BTreeMap<(&'static str, SocketAddr), BTreeSet<SocketAddr>>);

impl Table {
    /// Parses lines such as `-A -t 10.96.0.1:80 -s rr` and `-a -t 10.96.0.1:80 -r 10.1.2.10:8080 -m -w 1`. Only virtual servers of `family` count.
    pub(super) fn parse(saved: &str, family: Family) -> Result<Self> {
        let mut this = Self::default();
        for line in saved.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let after = |option: &str| {
                let at = words.iter().position(|word| *word == option)?;
                words.get(at + 1).copied()
            };
            let (protocol, address) = match (after("-t"), after("-u")) {
                (Some(address), _) => ("tcp", address),
                (_, Some(address)) => ("udp", address),
                // SCTP, and services by mark. No test uses them.
                _ => continue,
            };
            let address: SocketAddr = address.parse().context(line.to_owned())?;
            if Family::of(address.ip()) != family {
                continue;
            }
            let servers = this.0.entry((protocol, address)).or_default();
            if let Some(server) = after("-r") {
                let weight: u32 = after("-w").context(line.to_owned())?.parse()?;
                if weight > 0 {
                    servers.insert(server.parse().context(line.to_owned())?);
                }
            }
        }
        Ok(this)
    }

    /// The fate of packets of `protocol` to `to`. A node port has a virtual server at each address of the node. All of these must have the same real servers.
    pub(super) fn way(&self, protocol: &str, to: Virtual) -> Result<Way> {
        let of = |(known, address): &(&str, SocketAddr)| {
            *known == protocol
                && match to {
                    Virtual::Service(ip, port) => *address == SocketAddr::new(ip, port),
                    Virtual::NodePort(port) => address.port() == port,
                }
        };
        let mut servers = self.0.iter().filter(|(key, _)| of(key)).map(|(_, servers)| servers);
        let Some(first) = servers.next() else { return Ok(Way::Nothing) };
        if let Some(other) = servers.find(|other| *other != first) {
            bail!("{to:?} leads to {first:?} and, at another address, to {other:?}");
        }
        // Without a destination the kernel answers port unreachable (`ip_vs_leave`, net/netfilter/ipvs/ip_vs_core.c).
        Ok(if first.is_empty() { Way::Reject } else { Way::To(first.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_table_is_read() -> Result<()> {
        let saved = "-A -t 10.96.0.1:80 -s rr\n-a -t 10.96.0.1:80 -r 10.1.2.10:8080 -m -w 1\n-a -t 10.96.0.1:80 -r 10.1.3.10:8080 -m -w 0\n\
             -A -u [fd00::1]:53 -s rr -p 10800\n-A -t 10.2.0.1:30080 -s rr\n-A -t 10.3.0.1:30080 -s rr\n-a -t 10.3.0.1:30080 -r 10.1.2.10:8080 -m -w 1\n";
        let way = |protocol, to: &str| {
            let to: SocketAddr = to.parse()?;
            Table::parse(saved, Family::of(to.ip()))?.way(protocol, Virtual::Service(to.ip(), to.port()))
        };
        anyhow::ensure!(way("tcp", "10.96.0.1:80")? == Way::To(["10.1.2.10:8080".parse()?].into()));
        anyhow::ensure!(way("udp", "10.96.0.1:80")? == Way::Nothing);
        anyhow::ensure!(way("udp", "[fd00::1]:53")? == Way::Reject);
        let node_port = |family| Table::parse(saved, family)?.way("tcp", Virtual::NodePort(30080));
        anyhow::ensure!(node_port(Family::V4).is_err(), "they differ");
        anyhow::ensure!(node_port(Family::V6)? == Way::Nothing, "it is the other family's");
        Ok(())
    }
}
