//! Destinations of clients, and the fate of packets to them.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

/// A destination of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Virtual {
    /// An address and a port of a Service.
    Service(IpAddr, u16),
    /// A port of the node's own addresses of the IP version whose rules were read.
    NodePort(u16),
}

/// The fate of a client's first packet, if the client is not on this node and has no affinity.
#[derive(Clone, PartialEq, Eq)]
pub enum Way {
    /// The packet is sent to one of these endpoints.
    To(BTreeSet<SocketAddr>),
    /// The packet is refused: the Service has no endpoints at all.
    Reject,
    /// The packet is dropped: the policy is Local, and only other nodes have endpoints.
    Drop,
    /// Nothing is programmed for this destination.
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
