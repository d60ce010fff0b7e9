use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of difference between what the kernel or kube-proxy has and what the cluster says.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, schemars::JsonSchema,
)]
#[schemars(rename = "DifferenceKind")]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A destination in IPVS whose endpoint is gone.
    StaleDestination,
    /// An endpoint that is missing among the destinations in IPVS.
    MissingDestination,
    /// A virtual address that has no virtual server in IPVS.
    MissingService,
    /// A virtual server in IPVS whose address no Service has.
    ExtraService,
    /// A destination with weight 0 although no flag and no leaving endpoint explains it.
    StrayWeight,
    /// A destination on a flagged node that still gets connections, or still has some.
    FlaggedDestination,
    /// A UDP flow of a Service to a backend that is not an endpoint of the Service.
    StaleUdp,
    /// A translated flow to a flagged node.
    FlaggedFlow,
    /// A client that Service affinity ties to a backend of a flagged node.
    FlaggedAffinity,
    /// The last successful sync of kube-proxy is more than two minutes old, and another sync was requested since.
    KubeProxyStale,
}

/// Something that is read at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// The IPVS tables.
    Ipvs,
    /// Conntrack's entries.
    Conntrack,
    /// Service affinity: nftables' sets, xt_recent's lists, or persistence templates of IPVS.
    Affinity,
    /// kube-proxy's metrics.
    KubeProxy,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 4] = [Self::Ipvs, Self::Conntrack, Self::Affinity, Self::KubeProxy];

    /// The kinds of differences that are found in this part.
    pub const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Ipvs => &[
                Kind::StaleDestination,
                Kind::MissingDestination,
                Kind::MissingService,
                Kind::ExtraService,
                Kind::StrayWeight,
                Kind::FlaggedDestination,
            ],
            Self::Conntrack => &[Kind::StaleUdp, Kind::FlaggedFlow],
            Self::Affinity => &[Kind::FlaggedAffinity],
            Self::KubeProxy => &[Kind::KubeProxyStale],
        }
    }
}

impl Kind {
    /// All kinds, part by part.
    pub fn all() -> impl Iterator<Item = Self> {
        Part::ALL.into_iter().flat_map(|part| part.kinds().iter().copied())
    }

    /// Its name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StaleDestination => "stale-destination",
            Self::MissingDestination => "missing-destination",
            Self::MissingService => "missing-service",
            Self::ExtraService => "extra-service",
            Self::StrayWeight => "stray-weight",
            Self::FlaggedDestination => "flagged-destination",
            Self::StaleUdp => "stale-udp",
            Self::FlaggedFlow => "flagged-flow",
            Self::FlaggedAffinity => "flagged-affinity",
            Self::KubeProxyStale => "kube-proxy-stale",
        }
    }

    /// What this kind means, in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::StaleDestination => "A real server that outlived its endpoint",
            Self::MissingDestination => "An endpoint that is no real server",
            Self::MissingService => "A virtual address that has no virtual server",
            Self::ExtraService => "A virtual server whose address no Service has",
            Self::StrayWeight => "A weight of 0 that neither a flag nor a leaving endpoint explains",
            Self::FlaggedDestination => {
                "A real server on a flagged node that still gets connections, or has some"
            }
            Self::StaleUdp => "A UDP flow of a Service whose backend is none of the Service's endpoints",
            Self::FlaggedFlow => "A translated flow to a flagged node",
            Self::KubeProxyStale => "kube-proxy was asked for a sync, and none has succeeded for two minutes",
            Self::FlaggedAffinity => "A client that Service affinity keeps at a backend of a flagged node",
        }
    }

    /// The part in which this kind is found.
    pub fn part(self) -> Part {
        match self {
            Self::StaleUdp | Self::FlaggedFlow => Part::Conntrack,
            Self::FlaggedAffinity => Part::Affinity,
            Self::KubeProxyStale => Part::KubeProxy,
            _ => Part::Ipvs,
        }
    }

    /// What an operator can do about it.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::StaleDestination => {
                "nodefence repair --kind stale-destination; restart kube-proxy if more come"
            }
            Self::MissingDestination => {
                "nodefence repair --kind missing-destination; restart kube-proxy if more come"
            }
            Self::MissingService => {
                "restart kube-proxy: the address on kube-ipvs0 and its ipsets belong to it, a virtual server alone would not do"
            }
            Self::ExtraService => {
                "restart kube-proxy; if the address is somebody else's (kube-proxy's ipvs.excludeCIDRs), tell the agent: \
                 --exclude-cidr"
            }
            Self::StrayWeight => {
                "where `IPVS` in nodefence status names it: what that says; else, with connections: restart kube-proxy, which sets all weights anew; without: \
                 nodefence repair --kind stray-weight, which deletes it, and kube-proxy adds it again"
            }
            Self::FlaggedDestination => "see `IPVS` in nodefence status",
            Self::StaleUdp => "nodefence repair --kind stale-udp; restart kube-proxy if more come",
            Self::FlaggedFlow => "nodefence repair --kind flagged-flow; see nodefence status",
            Self::KubeProxyStale => {
                "see kube-proxy's log for what its sync waits for or fails at; restart kube-proxy"
            }
            Self::FlaggedAffinity => {
                "see nodefence status; but for IPVS, which the agent drains itself: nodefence repair --kind flagged-affinity"
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
