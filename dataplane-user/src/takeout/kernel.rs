use std::{collections::HashSet, time::Duration};

use nodefence_common::{Addr, PortKey};

use super::Tables;
use crate::{
    conntrack::{Backends, Conntrack, Family as Half, Flow, Protocols, TcpState},
    flags::monotonic_ns,
    ipvs::{self, Applied, Change, Destination, Ipvs, Listed, Protocol, Service, ServiceKey},
    ledger::Pair,
    plan::takeout::{Counts, Ground},
    sysctl,
};

/// Told of conntrack entries before they are deleted.
pub type Known = Box<dyn FnMut(&[Flow]) + Send>;

/// The tables of the network namespace that it was opened in. Blocking.
pub struct Kernel {
    ipvs: Ipvs,
    conntrack: Option<Conntrack>,
    known: Known,
}

impl Kernel {
    /// Opens them.
    ///
    /// # Errors
    /// As [`Ipvs::open`]. Without conntrack a fixed time is waited instead of counting.
    pub fn open(known: Known) -> Result<Self, ipvs::Error> {
        Ok(Self { ipvs: Ipvs::open()?, conntrack: Conntrack::open().ok(), known })
    }

    /// Deletes the entries of datagrams to destinations that were just deleted. IPVS does so with their connections, some milliseconds later, and until then
    /// it drops what comes by an entry that is confirmed (`ip_vs_in`, net/netfilter/ipvs/ip_vs_core.c): without one it sends it elsewhere at once.
    fn forget_datagrams(&mut self, changes: &[Change]) {
        let mut gone = Backends::new();
        for change in changes {
            let Change::DeleteDestination(ServiceKey::Address { protocol, .. }, destination) = change else {
                continue;
            };
            if matches!(*protocol, Protocol::UDP | Protocol::SCTP) {
                let address = destination.ip().into();
                gone.add_port(PortKey::endpoint(address, destination.port(), protocol.0 as u8));
            }
        }
        let Some(conntrack) = self.conntrack.as_mut().filter(|_| !gone.is_empty()) else { return };
        if let Err(error) = conntrack.delete_known(&gone, Protocols::Datagrams, &mut self.known) {
            tracing::debug!(%error, "conntrack entries of deleted destinations are left to IPVS");
        }
    }
}

/// How the kernel is set in the calling thread's network namespace.
pub fn ground(enforce: bool) -> Ground {
    Ground { enforce, flushes: is_on("expire_nodest_conn") }
}

/// Whether a switch of IPVS is on.
fn is_on(name: &str) -> bool {
    sysctl::number(&format!("net/ipv4/vs/{name}")).is_some_and(|value| value != 0)
}

impl Tables for Kernel {
    fn now(&self) -> Duration {
        Duration::from_nanos(monotonic_ns())
    }

    fn services(&mut self) -> Result<Listed<Service>, ipvs::Error> {
        self.ipvs.services()
    }

    fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, ipvs::Error> {
        self.ipvs.service(key)
    }

    fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, ipvs::Error> {
        self.ipvs.destinations(key)
    }

    fn apply(&mut self, changes: &[Change]) -> Applied {
        let applied = self.ipvs.apply(changes);
        self.forget_datagrams(changes);
        applied
    }

    /// By address and port of the service and the source of the answers: what is sent to a backend directly stays. A firewall mark says
    /// nothing of addresses. Behind tunnels the answers do not show the backend: none are found, and the destination's counters decide.
    fn count(&mut self, pairs: &[Pair]) -> Counts {
        let Some(conntrack) = &mut self.conntrack else { return Counts::new() };
        if !is_on("conntrack") {
            return Counts::new();
        }
        let mut counts: Counts =
            pairs.iter().filter(|pair| is_address(&pair.service)).map(|pair| (*pair, 0)).collect();
        let backends: HashSet<Addr> = counts.keys().map(|pair| pair.destination.ip().into()).collect();
        for half in [Half::V4, Half::V6] {
            if !backends.iter().any(|addr| addr.as_v4().is_some() == (half == Half::V4)) {
                continue;
            }
            // Counted as it streams in: there may be a hundred thousand. What a dump that was begun anew tells twice is not none either way.
            let dumped = conntrack.dump(half, |flow| {
                if backends.contains(&flow.reply.src)
                    && flow.tcp != Some(TcpState::Close)
                    && let Some(count) = counts.get_mut(&pair_of(flow))
                {
                    *count += 1;
                }
                false
            });
            if dumped.is_err() {
                return Counts::new();
            }
        }
        counts
    }
}

fn is_address(key: &ServiceKey) -> bool {
    matches!(key, ServiceKey::Address { .. })
}

/// Of which pair a flow is, where it was sent to an address.
pub fn pair_of(flow: &Flow) -> Pair {
    let address = (std::net::IpAddr::from(flow.orig.dst), flow.orig.dst_port).into();
    let protocol = Protocol(flow.orig.protocol.into());
    Pair { service: ServiceKey::Address { address, protocol }, destination: flow.backend() }
}
