use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::NodeName,
    ipvs::{DefaultNla, Destination, Family, Forward, Protocol, ServiceKey, Tunnel},
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

/// How far a destination was taken out, at least: what may be missing from the table by our doing.
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

/// A destination that is ours to put back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The flagged node that it was taken out for.
    pub node: NodeName,
    /// How far.
    pub phase: Phase,
    /// As it was when it was taken. Its counters mean nothing here, and are 0 when they were read from the file.
    pub original: Destination,
}

/// One line of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The destination is ours from now on; replaces what stood there of it.
    Own(Pair, Entry),
    /// It enters another phase.
    Phase(Pair, Phase),
    /// It is ours no more: put back, or somebody else's by now.
    Drop(Pair),
}

impl Record {
    /// Which destination it is about.
    pub fn pair(&self) -> Pair {
        match self {
            Self::Own(pair, _) | Self::Phase(pair, _) | Self::Drop(pair) => *pair,
        }
    }

    pub(super) fn stored(&self) -> Stored {
        match self {
            Self::Own(pair, entry) => Stored::Own {
                service: StoredKey::of(&pair.service),
                node: entry.node.clone(),
                phase: entry.phase,
                original: StoredDestination::of(&entry.original),
            },
            Self::Phase(pair, phase) => Stored::Phase {
                service: StoredKey::of(&pair.service),
                destination: pair.destination,
                phase: *phase,
            },
            Self::Drop(pair) => {
                Stored::Drop { service: StoredKey::of(&pair.service), destination: pair.destination }
            }
        }
    }
}

/// A record as it stands in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stored {
    Own { service: StoredKey, node: NodeName, phase: Phase, original: StoredDestination },
    Phase { service: StoredKey, destination: SocketAddr, phase: Phase },
    Drop { service: StoredKey, destination: SocketAddr },
}

impl Stored {
    /// `None` where it names an address family that does not exist.
    pub(super) fn record(self) -> Option<Record> {
        Some(match self {
            Self::Own { service, node, phase, original } => {
                let original = original.destination();
                let pair = Pair { service: service.key()?, destination: original.address };
                Record::Own(pair, Entry { node, phase, original })
            }
            Self::Phase { service, destination, phase } => {
                Record::Phase(Pair { service: service.key()?, destination }, phase)
            }
            Self::Drop { service, destination } => {
                Record::Drop(Pair { service: service.key()?, destination })
            }
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum StoredKey {
    Address { address: SocketAddr, protocol: u16 },
    Mark { mark: u32, ipv6: bool },
}

impl StoredKey {
    fn of(key: &ServiceKey) -> Self {
        match *key {
            ServiceKey::Address { address, protocol } => Self::Address { address, protocol: protocol.0 },
            ServiceKey::Mark { family, mark } => Self::Mark { mark, ipv6: family == Family::V6 },
        }
    }

    fn key(&self) -> Option<ServiceKey> {
        match *self {
            Self::Address { address, protocol } => {
                Some(ServiceKey::Address { address, protocol: Protocol(protocol) })
            }
            // IPVS knows no mark 0: such a key would ask for any service of the family.
            Self::Mark { mark: 0, .. } => None,
            Self::Mark { mark, ipv6 } => {
                Some(ServiceKey::Mark { family: if ipv6 { Family::V6 } else { Family::V4 }, mark })
            }
        }
    }
}

/// All that is written when the destination is added again; no counters.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredDestination {
    address: SocketAddr,
    forward: u32,
    weight: u32,
    upper: u32,
    lower: u32,
    /// Kind, port, flags.
    tunnel: (u8, u16, u16),
    /// Attributes of later kernels: type and bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<(u16, Vec<u8>)>,
}

impl StoredDestination {
    fn of(destination: &Destination) -> Self {
        use netlink_packet_core::Nla as _;
        let Tunnel { kind, port, flags } = destination.tunnel;
        let unknown = destination.unknown.iter().map(|attribute| {
            let mut bytes = vec![0; attribute.value_len()];
            attribute.emit_value(&mut bytes);
            (attribute.kind(), bytes)
        });
        Self {
            address: destination.address,
            forward: destination.forward.raw(),
            weight: destination.weight,
            upper: destination.upper_threshold,
            lower: destination.lower_threshold,
            tunnel: (kind, port, flags),
            unknown: unknown.collect(),
        }
    }

    fn destination(self) -> Destination {
        let (kind, port, flags) = self.tunnel;
        Destination {
            forward: Forward::from_raw(self.forward),
            upper_threshold: self.upper,
            lower_threshold: self.lower,
            tunnel: Tunnel { kind, port, flags },
            unknown: self.unknown.into_iter().map(|(kind, bytes)| DefaultNla::new(kind, bytes)).collect(),
            ..Destination::new(self.address, self.weight)
        }
    }
}
