//! kube-proxy on this node: its mode, the replacement that forwards in its place, and the affinity that it keeps. Nothing here
//! changes kube-proxy's chains, sets or rules. Of the affinity only elements of sets and entries of lists are deleted.

mod affinity;
mod facts;
mod http;
mod judge;
mod legacy;
mod metrics;
mod nft;

pub use affinity::{Affinity, Flushed, Forget, clients, flush};
pub use facts::{Facts, ModeReply, replacement};
pub use judge::{Judgement, ProxyChoice, Said, judge};
pub use metrics::syncs;
pub use nodefence_core::proxy::{Endpoint, Mode, Replacement, endpoints};

use thiserror::Error;

/// Why kube-proxy's affinity could not be read or deleted.
#[derive(Debug, Error)]
pub enum Error {
    /// The netlink socket could not be made.
    #[error("cannot open a netfilter netlink socket")]
    Open(#[source] std::io::Error),
    /// CAP_NET_ADMIN in the network namespace is missing.
    #[error("kube-proxy's sets may not be read or changed: CAP_NET_ADMIN is missing")]
    Permission,
    /// A request could not be sent or answered.
    #[error("nftables {request} failed")]
    Io {
        /// The request that failed.
        request: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the kernel broke a list off again and again, since the list's content changes.
    pub fn is_broken_off(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::Interrupted)
    }
}
