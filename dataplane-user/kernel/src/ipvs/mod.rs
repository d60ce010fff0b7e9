//! Reads and changes the kernel's IPVS tables. No other module touches IPVS. This module knows nothing of nodes, plans or policy.
//!
//! The tables are reached by the generic netlink family "IPVS" (include/uapi/linux/ip_vs.h, net/netfilter/ipvs/ip_vs_ctl.c; the
//! same from Linux 5.10 to 7.2). Two parts of the family are left out:
//!
//! - IPVS_CMD_FLUSH empties the whole table. No code here can express it.
//! - The sync daemons (NEW/DEL/GET_DAEMON) copy connections to a standby director. No node of a cluster is a standby director,
//!   and nothing that this module does depends on the daemons.
//!
//! IPVS sends no notifications. To see what kube-proxy changed, read the tables again.

mod apply;
mod codec;
mod read;

pub use apply::Applied;
pub use nodefence_core::ipvs::{
    BadName, Change, ChangeOutcome, Destination, Family, Flags, Forward, Name, Netmask, Protocol, Service,
    ServiceKey, Tunnel, flags,
};
pub use read::{Ipvs, Listed, is_loaded};

use thiserror::Error;

/// Why IPVS could not be read or changed.
#[derive(Debug, Error)]
pub enum Error {
    /// The netlink socket could not be made.
    #[error("cannot open a generic netlink socket")]
    Open(#[source] std::io::Error),
    /// The kernel has no IPVS, or its module `ip_vs` is not loaded. Nothing here loads it.
    #[error("IPVS is not loaded in this kernel (module ip_vs)")]
    NotLoaded,
    /// CAP_NET_ADMIN is missing, or held only in another user namespace than the initial one, in which IPVS requires it.
    #[error("IPVS may not be read or changed: CAP_NET_ADMIN (in the initial user namespace) is missing")]
    Permission,
    /// A request could not be sent or answered, or was refused.
    #[error("IPVS {request} failed")]
    Io {
        /// The request that failed.
        request: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kernel's answer lacks an attribute that it must have.
    #[error("the kernel's answer to IPVS {request} cannot be read")]
    Malformed {
        /// The request with that answer.
        request: &'static str,
    },
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
