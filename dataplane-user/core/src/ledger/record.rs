use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::NodeName,
    ipvs::{Destination, ServiceKey},
};

/// A destination of a service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pair {
    /// The virtual server.
    pub service: ServiceKey,
    /// The real server: address and port.
    pub destination: SocketAddr,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.service, self.destination)
    }
}

/// How far a destination was drained, at least. This says whether it may be missing from the table by our doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its weight is 0, or is being set to 0. If it is missing, somebody else removed it.
    Lowered,
    /// It is deleted, or is being deleted or added again. If it is missing, that is our doing.
    Deleted,
    /// It was deleted and stands there again, with weight 0. If it is missing, somebody else removed it.
    Tombstone,
}

/// A destination that is ours to restore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The flagged node for which it was drained.
    pub node: NodeName,
    /// How far it was drained.
    pub phase: Phase,
    /// The destination as it was before the drain. Its counters mean nothing here, and are 0 when they were read from the file.
    pub original: Destination,
}

/// One line of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The destination is ours from now on. Replaces earlier lines of it.
    Own(Pair, Entry),
    /// The destination enters another phase.
    Phase(Pair, Phase),
    /// The destination is ours no more: it was restored, or is somebody else's by now.
    Drop(Pair),
}

impl Record {
    /// The destination of this line.
    pub fn pair(&self) -> Pair {
        match self {
            Self::Own(pair, _) | Self::Phase(pair, _) | Self::Drop(pair) => *pair,
        }
    }
}
