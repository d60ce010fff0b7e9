use std::fmt;

use serde::{Deserialize, Serialize};

/// How kube-proxy forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "ProxyMode")]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By virtual servers of IPVS.
    Ipvs,
    /// By chains of iptables, legacy or nft.
    Iptables,
    /// By a table of nftables.
    Nftables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}
