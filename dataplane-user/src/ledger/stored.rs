//! The form in which the ledger's file stores a record.

use std::net::SocketAddr;

use nodefence_core::{
    cluster::NodeName,
    ipvs::{Destination, Family, Forward, Protocol, ServiceKey, Tunnel},
    ledger::{Entry, Pair, Phase, Record},
};
use serde::{Deserialize, Serialize};

/// A record in the form that the file stores.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stored {
    Own { service: StoredKey, node: NodeName, phase: Phase, original: StoredDestination },
    Phase { service: StoredKey, destination: SocketAddr, phase: Phase },
    Drop { service: StoredKey, destination: SocketAddr },
}

impl Stored {
    /// The stored form of a record.
    pub(super) fn of(record: &Record) -> Self {
        match record {
            Record::Own(pair, entry) => Self::Own {
                service: StoredKey::of(&pair.service),
                node: entry.node.clone(),
                phase: entry.phase,
                original: StoredDestination::of(&entry.original),
            },
            Record::Phase(pair, phase) => Self::Phase {
                service: StoredKey::of(&pair.service),
                destination: pair.destination,
                phase: *phase,
            },
            Record::Drop(pair) => {
                Self::Drop { service: StoredKey::of(&pair.service), destination: pair.destination }
            }
        }
    }

    /// The record. `None` where its Service has the mark 0, which no Service can have.
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
            // IPVS has no mark 0: a request with such a key would mean any service of the family.
            Self::Mark { mark: 0, .. } => None,
            Self::Mark { mark, ipv6 } => {
                Some(ServiceKey::Mark { family: if ipv6 { Family::V6 } else { Family::V4 }, mark })
            }
        }
    }
}

/// All attributes that are written when the destination is added again. Counters are not among them.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredDestination {
    address: SocketAddr,
    forward: u32,
    weight: u32,
    upper: u32,
    lower: u32,
    /// The tunnel's kind, port and flags.
    tunnel: (u8, u16, u16),
    /// The type and bytes of attributes of later kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<(u16, Vec<u8>)>,
}

impl StoredDestination {
    fn of(destination: &Destination) -> Self {
        let Tunnel { kind, port, flags } = destination.tunnel;
        Self {
            address: destination.address,
            forward: destination.forward.raw(),
            weight: destination.weight,
            upper: destination.upper_threshold,
            lower: destination.lower_threshold,
            tunnel: (kind, port, flags),
            unknown: destination.unknown.clone(),
        }
    }

    fn destination(self) -> Destination {
        let (kind, port, flags) = self.tunnel;
        Destination {
            forward: Forward::from_raw(self.forward),
            upper_threshold: self.upper,
            lower_threshold: self.lower,
            tunnel: Tunnel { kind, port, flags },
            unknown: self.unknown,
            ..Destination::new(self.address, self.weight)
        }
    }
}
