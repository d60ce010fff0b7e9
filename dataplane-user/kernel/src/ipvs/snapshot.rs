use std::{collections::BTreeMap, net::SocketAddr};

use super::{Destination, Service, ServiceKey};

/// The table at one time, as far as it stood still.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// By key.
    pub services: BTreeMap<ServiceKey, VirtualServer>,
    /// Answers that could not be read: what they told of is not in here.
    pub malformed: usize,
    /// A list changed each time while it was read: something may be missing, or be gone already.
    pub incomplete: bool,
}

/// A service with its destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualServer {
    /// The service.
    pub service: Service,
    /// In order of their addresses.
    pub destinations: Vec<Destination>,
}

impl VirtualServer {
    /// The destination at an address and port.
    pub fn destination(&self, address: SocketAddr) -> Option<&Destination> {
        let at = self.destinations.binary_search_by_key(&address, |destination| destination.address).ok()?;
        self.destinations.get(at)
    }
}

impl Snapshot {
    /// Every pair of service and destination: one pod may stand behind many services.
    pub fn pairs(&self) -> impl Iterator<Item = (&Service, &Destination)> {
        self.services.values().flat_map(|server| {
            server.destinations.iter().map(move |destination| (&server.service, destination))
        })
    }

    /// One pair.
    pub fn pair(&self, key: &ServiceKey, address: SocketAddr) -> Option<&Destination> {
        self.services.get(key)?.destination(address)
    }
}
