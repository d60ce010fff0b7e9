//! A node behind IPVS as kube-proxy sets it, a snapshot of its tables, and `ipvsadm`'s view of them.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::Result;
use nodefence::ipvs::{Destination, Error, Ipvs, Service, ServiceKey};

use crate::{Cluster, Netns, Options, Proxy};

/// The sysctls that kube-proxy switches on in its ipvs mode, below `/proc/sys/net` (`NewProxier`, pkg/proxy/ipvs/proxier.go).
pub const SWITCHES: [&str; 3] =
    ["ipv4/vs/conntrack", "ipv4/vs/expire_nodest_conn", "ipv4/vs/expire_quiescent_template"];

/// Switches them on.
///
/// # Errors
/// Where the kernel has no IPVS.
pub fn switch_on(ns: &Netns) -> Result<()> {
    SWITCHES.iter().try_for_each(|switch| ns.sysctl(switch, "1"))
}

/// A cluster whose node A is behind IPVS, as kube-proxy sets it.
///
/// # Errors
/// As [`Cluster::new`].
pub fn cluster() -> Result<Cluster> {
    let cluster = Cluster::new(Options { proxy: Proxy::Ipvs, ..Options::default() })?;
    switch_on(&cluster.a.ns)?;
    Ok(cluster)
}

/// A snapshot of the tables, as far as they stood still.
#[derive(Debug)]
pub struct Snapshot {
    /// By key.
    pub services: BTreeMap<ServiceKey, VirtualServer>,
    /// Answers that could not be read; their rows are missing here.
    pub malformed: usize,
    /// Each reading of a list met a change of it: rows may be missing, or be gone already.
    pub incomplete: bool,
}

/// A service with its destinations.
#[derive(Debug)]
pub struct VirtualServer {
    /// The service.
    pub service: Service,
    /// In order of their addresses.
    pub destinations: Vec<Destination>,
}

impl Snapshot {
    /// All services with their destinations. A change during the reading may be in it or not. All that does not change is in it, but for a service that two
    /// readings in a row passed over.
    ///
    /// # Errors
    /// Those of [`Ipvs::services`] and [`Ipvs::service`].
    pub fn read(ipvs: &mut Ipvs) -> Result<Self, Error> {
        let listed = ipvs.services()?;
        let mut all =
            Self { services: BTreeMap::new(), malformed: listed.malformed, incomplete: listed.incomplete };
        for service in listed.items {
            let found = ipvs.destinations(&service.key)?;
            // The kernel lists the destinations of a service that is gone as none.
            if found.items.is_empty() && found.malformed == 0 && ipvs.service(&service.key)?.is_none() {
                continue;
            }
            all.malformed += found.malformed;
            all.incomplete |= found.incomplete;
            all.services.insert(service.key, VirtualServer { service, destinations: found.items });
        }
        Ok(all)
    }

    /// Every pair of service and destination: one pod may stand behind many services.
    pub fn pairs(&self) -> impl Iterator<Item = (&Service, &Destination)> {
        self.services.values().flat_map(|server| {
            server.destinations.iter().map(move |destination| (&server.service, destination))
        })
    }

    /// One pair.
    pub fn pair(&self, key: &ServiceKey, address: SocketAddr) -> Option<&Destination> {
        self.services.get(key)?.destinations.iter().find(|destination| destination.address == address)
    }
}

/// Lines of `ipvsadm -Sn` (what `ipvsadm-save -n` prints), in order. Thresholds are not among them.
///
/// # Errors
/// Where `ipvsadm` fails.
pub fn saved(ns: &Netns) -> Result<Vec<String>> {
    let mut lines: Vec<String> = ns.exec("ipvsadm -Sn")?.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    Ok(lines)
}
