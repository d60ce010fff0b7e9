//! kube-proxy on this node: which of its modes forwards, what forwards in its place, and the affinity that it keeps. Nothing here touches
//! its chains, sets or rules; of the affinity only elements are deleted.

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

/// What can go wrong with the affinity.
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
        /// What was asked.
        request: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the kernel broke a list off again and again, since what is in it changes.
    pub fn is_broken_off(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::Interrupted)
    }
}
