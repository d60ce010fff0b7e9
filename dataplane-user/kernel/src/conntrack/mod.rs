//! Reads the kernel's conntrack table, deletes entries, and makes entries liberal ([`Conntrack::make_all_liberal`]).
//!
//! `netlink-packet-netfilter` 0.4 knows tuples, status and TCP state, but not zones, ids and filters. It allocates for every
//! attribute of every entry. It can express a DELETE without a tuple, which flushes the whole table. So this module reads and
//! writes the few attributes that it needs, on netlink-packet-core's message and attribute buffers, and cannot express a flush.

mod blind;
mod codec;
mod delete;
mod list;
mod probe;
mod remove;
mod socket;
mod stats;

pub use blind::{Blind, blind};
pub use list::{List, WantedFlow, of_backends};
pub use nodefence_core::{
    Family,
    cluster::Backends,
    conntrack::{Flow, TcpState, Tuple, Turns, Zone, status},
};
pub use probe::by_filter;
pub use remove::{ByFilter, Deleted, Protocols};
pub use socket::{Answered, Conntrack, Dump};
pub use stats::Stats;

use nodefence_common::packet::protocol::{SCTP, TCP, UDP};
use thiserror::Error;

/// Why the table could not be read or changed.
#[derive(Debug, Error)]
pub enum Error {
    /// The netlink socket could not be made.
    #[error("cannot open a netfilter netlink socket")]
    Open(#[source] std::io::Error),
    /// The kernel has no conntrack over netlink (module `nf_conntrack_netlink`).
    #[error("the kernel does not list conntrack entries (is nf_conntrack_netlink available?)")]
    NoConntrack,
    /// CAP_NET_ADMIN in the network namespace is missing.
    #[error("conntrack entries may not be read: CAP_NET_ADMIN is missing")]
    Permission,
    /// The actor that lists entries for others has ended.
    #[error("conntrack is not listed any more: the agent ends")]
    Ended,
    /// A request could not be sent or answered.
    #[error("conntrack {request} failed")]
    Io {
        /// The request that failed.
        request: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests;
