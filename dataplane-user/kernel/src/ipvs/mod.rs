//! The kernel's IPVS tables: read them, change destinations. The only room that touches IPVS; it knows nothing of nodes, plans or policy.
//!
//! Generic netlink family "IPVS" (include/uapi/linux/ip_vs.h, net/netfilter/ipvs/ip_vs_ctl.c; the same from Linux 5.10 to 7.2). Two parts
//! of it are left out. IPVS_CMD_FLUSH, which empties the whole table, so that it cannot be expressed. And the sync daemons
//! (NEW/DEL/GET_DAEMON), which copy connections to a standby director: no node of a cluster is one, and nothing that this
//! room does depends on them.
//!
//! There are no notifications: who wants to know what kube-proxy changed reads again.

mod apply;
mod codec;
mod read;

pub use apply::Applied;
pub use nodefence_core::ipvs::{
    BadName, Change, Destination, Family, Flags, Forward, Name, Netmask, Outcome, Protocol, Service,
    ServiceKey, Tunnel, flags,
};
pub use read::{Ipvs, Listed, is_loaded};

use thiserror::Error;

/// What can go wrong with the tables.
#[derive(Debug, Error)]
pub enum Error {
    /// The netlink socket could not be made.
    #[error("cannot open a generic netlink socket")]
    Open(#[source] std::io::Error),
    /// The kernel has no IPVS, or its module `ip_vs` is not loaded. Nothing here loads it.
    #[error("IPVS is not loaded in this kernel (module ip_vs)")]
    NotLoaded,
    /// CAP_NET_ADMIN is missing, or held only in a user namespace: IPVS wants it in the initial one.
    #[error("IPVS may not be read or changed: CAP_NET_ADMIN (in the initial user namespace) is missing")]
    Permission,
    /// A request could not be sent or answered, or was refused.
    #[error("IPVS {request} failed")]
    Io {
        /// What was asked.
        request: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kernel's answer lacks what it must have.
    #[error("the kernel's answer to IPVS {request} cannot be read")]
    Malformed {
        /// What was asked.
        request: &'static str,
    },
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
