//! What kube-proxy has programmed for a virtual address.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use nodefence::cluster::Family;

use super::{Mode, iptables, ipvs, nftables};
use crate::Netns;

/// What clients send to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Virtual {
    /// An address and a port of a Service.
    Service(IpAddr, u16),
    /// A port of the node's own addresses, those of the family that was read.
    NodePort(u16),
}

/// What becomes of a client's first packet, if the client is neither on this node nor known by affinity.
#[derive(Clone, PartialEq, Eq)]
pub enum Way {
    /// It is sent to one of these.
    To(BTreeSet<SocketAddr>),
    /// It is refused: the Service has no endpoints at all.
    Reject,
    /// It is dropped: the policy is Local, and there are endpoints on other nodes only.
    Drop,
    /// Nothing is programmed.
    Nothing,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(endpoints) => f.debug_set().entries(endpoints).finish(),
            Self::Reject => f.write_str("reject"),
            Self::Drop => f.write_str("drop"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// Everything that a kube-proxy has programmed in a namespace for one family, at one moment.
#[derive(Debug)]
pub enum Rules {
    /// Its table, as `nft` prints it.
    Nftables(nftables::Table),
    /// Its chains, as `iptables-save` or `ip6tables-save` prints them.
    Iptables(iptables::Chains),
    /// Its virtual servers, as `ipvsadm-save` prints them.
    Ipvs(ipvs::Table),
}

impl Rules {
    /// Reads them.
    ///
    /// # Errors
    /// Where `nft`, `iptables-save` or `ipvsadm` fails or prints what is not understood.
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

    /// What becomes of packets of `protocol` (`tcp`, `udp`) to `to`.
    ///
    /// # Errors
    /// Where the rules lead to something that is not understood.
    pub fn way(&self, protocol: &str, to: Virtual) -> Result<Way> {
        match self {
            Self::Nftables(table) => table.way(protocol, to),
            Self::Iptables(chains) => chains.way(protocol, to),
            Self::Ipvs(table) => table.way(protocol, to),
        }
    }
}
