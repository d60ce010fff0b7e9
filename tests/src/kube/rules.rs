//! Reads kube-proxy's rules, of whatever mode.

use anyhow::Result;
use nodefence::cluster::Family;

use super::{
    Mode, iptables, ipvs, nftables,
    way::{Virtual, Way},
};
use crate::Netns;

/// Everything that a kube-proxy has programmed in a namespace for one IP version.
#[derive(Debug)]
pub enum Rules {
    /// The table, as `nft` prints it.
    Nftables(nftables::Table),
    /// The chains, as `iptables-save` or `ip6tables-save` prints them.
    Iptables(iptables::Chains),
    /// The virtual servers, as `ipvsadm-save` prints them.
    Ipvs(ipvs::Table),
}

impl Rules {
    /// Reads the rules in a namespace.
    ///
    /// # Errors
    /// Fails if `nft`, `iptables-save` or `ipvsadm` fails, or prints something that is not understood.
    pub fn read(ns: &Netns, mode: Mode, family: Family) -> Result<Self> {
        let ip = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        match mode {
            Mode::Nftables => {
                let table = ns.exec(&format!("nft -j list table {ip} kube-proxy"))?;
                nftables::Table::parse(&table).map(Self::Nftables)
            }
            Mode::Iptables => {
                let save = |table| ns.exec(&format!("{ip}tables-save -t {table}"));
                Ok(Self::Iptables(iptables::Chains::parse(&save("nat")?, &save("filter")?)))
            }
            Mode::Ipvs => ipvs::Table::parse(&ns.exec("ipvsadm -S -n")?, family).map(Self::Ipvs),
        }
    }

    /// The fate of packets of `protocol` (`tcp`, `udp`) to `to`.
    ///
    /// # Errors
    /// Fails if the rules lead to something that is not understood.
    pub fn way(&self, protocol: &str, to: Virtual) -> Result<Way> {
        match self {
            Self::Nftables(table) => table.way(protocol, to),
            Self::Iptables(chains) => chains.way(protocol, to),
            Self::Ipvs(table) => table.way(protocol, to),
        }
    }
}
