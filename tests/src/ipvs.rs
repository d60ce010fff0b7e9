//! A node whose proxy is IPVS with kube-proxy's sysctls, a snapshot of its IPVS tables, and `ipvsadm`'s view of them.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::Result;
use nodefence::ipvs::{Destination, Error, Ipvs, Service, ServiceKey};

use crate::{Cluster, Netns, Options, Proxy};

/// The sysctls below `/proc/sys/net` that kube-proxy switches on in its ipvs mode (`NewProxier`, pkg/proxy/ipvs/proxier.go).
pub const SWITCHES: [&str; 3] =
    ["ipv4/vs/conntrack", "ipv4/vs/expire_nodest_conn", "ipv4/vs/expire_quiescent_template"];

/// Switches on [`SWITCHES`].
///
/// # Errors
/// Fails if the kernel has no IPVS.
pub fn switch_on(ns: &Netns) -> Result<()> {
    SWITCHES.iter().try_for_each(|switch| ns.sysctl(switch, "1"))
}

/// A cluster whose node A uses IPVS, with kube-proxy's sysctls.
///
/// # Errors
/// Fails as [`Cluster::new`] does.
pub fn cluster() -> Result<Cluster> {
    let cluster = Cluster::new(Options { proxy: Proxy::Ipvs, ..Options::default() })?;
    switch_on(&cluster.a.ns)?;
    Ok(cluster)
}

/// A snapshot of the tables. It is exact only if nothing changed during the reading.
#[derive(Debug)]
pub struct Snapshot {
    /// Services by their keys.
    pub services: BTreeMap<ServiceKey, VirtualServer>,
    /// How many answers could not be read. Their rows are missing here.
    pub malformed: usize,
    /// Whether each reading of some list met a change of that list. Then rows may be missing, or may be gone from the kernel already.
    pub incomplete: bool,
}

/// A service with its destinations.
#[derive(Debug)]
pub struct VirtualServer {
    /// The service.
    pub service: Service,
    /// The destinations, in the order of their addresses.
    pub destinations: Vec<Destination>,
}

impl Snapshot {
    /// Reads all services with their destinations. A change during the reading may be included or not. Everything that does not change is included, except for
    /// a service that two readings in a row passed over.
    ///
    /// # Errors
    /// Fails as [`Ipvs::services`], [`Ipvs::destinations`] and [`Ipvs::service`] do.
    pub fn read(ipvs: &mut Ipvs) -> Result<Self, Error> {
        let listed = ipvs.services()?;
        let mut all =
            Self { services: BTreeMap::new(), malformed: listed.malformed, incomplete: listed.incomplete };
        for service in listed.items {
            let found = ipvs.destinations(&service.key)?;
            // For a service that is gone, the kernel lists no destinations.
            if found.items.is_empty() && found.malformed == 0 && ipvs.service(&service.key)?.is_none() {
                continue;
            }
            all.malformed += found.malformed;
            all.incomplete |= found.incomplete;
            all.services.insert(service.key, VirtualServer { service, destinations: found.items });
        }
        Ok(all)
    }

    /// Every pair of service and destination. One pod may be behind many services.
    pub fn pairs(&self) -> impl Iterator<Item = (&Service, &Destination)> {
        self.services.values().flat_map(|server| {
            server.destinations.iter().map(move |destination| (&server.service, destination))
        })
    }

    /// The destination with this address of the service with this key.
    pub fn pair(&self, key: &ServiceKey, address: SocketAddr) -> Option<&Destination> {
        self.services.get(key)?.destinations.iter().find(|destination| destination.address == address)
    }
}

/// The sorted lines of `ipvsadm -Sn`, which `ipvsadm-save -n` prints too. They have no thresholds.
///
/// # Errors
/// Fails if `ipvsadm` fails.
pub fn saved(ns: &Netns) -> Result<Vec<String>> {
    let mut lines: Vec<String> = ns.exec("ipvsadm -Sn")?.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    Ok(lines)
}
