//! Destinations of clients, and what becomes of packets to them.

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
    /// A port of the node's own addresses, those of the family that was read.
    NodePort(u16),
}

/// The fate of a client's first packet, if the client is neither on this node nor known by affinity.
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
