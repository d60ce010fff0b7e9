use std::{collections::HashSet, net::SocketAddr, time::Duration};

use nodefence_common::Addr;

use super::Tables;
use crate::{
    conntrack::{self, Conntrack, Family as Half, Flow, TcpState},
    flags::monotonic_ns,
    ipvs::{self, Applied, Change, Destination, Ipvs, Listed, Outcome, Protocol, Service, ServiceKey},
    ledger::Pair,
    plan::takeout::{Counts, Ground},
    sysctl,
};

/// How long others may have the processor.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// Told of conntrack entries before they are deleted.
pub type Known = Box<dyn FnMut(&[Flow]) + Send>;

/// The tables of the network namespace that it was opened in. Blocking.
pub struct Kernel {
    ipvs: Ipvs,
    conntrack: Option<Conntrack>,
    known: Known,
    /// Destinations of datagrams that were deleted, and whose conntrack entries were not yet.
    gone: HashSet<Pair>,
}

/// How many conntrack entries are remembered and deleted together.
const TOGETHER: usize = 64;

impl Kernel {
    /// Opens them.
    ///
    /// # Errors
    /// As [`Ipvs::open`]. Without conntrack a fixed time is waited instead of counting.
    pub fn open(known: Known) -> Result<Self, ipvs::Error> {
        let conntrack = Conntrack::open().ok();
        Ok(Self { ipvs: Ipvs::open()?, conntrack, known, gone: HashSet::new() })
    }

    /// Deletes the entries of datagrams to destinations that were just deleted, as these services sent them there: the same destination may serve others. IPVS
    /// does so with their connections, some milliseconds later, and until then it drops what comes by an entry that is confirmed (`ip_vs_in`,
    /// net/netfilter/ipvs/ip_vs_core.c): without one it sends it elsewhere at once.
    fn forget_datagrams(&mut self, half: Half, gone: &HashSet<Pair>) -> Result<(), conntrack::Error> {
        let Some(conntrack) = &mut self.conntrack else { return Ok(()) };
        let found = conntrack.dump(half, |flow| gone.contains(&pair_of(flow)))?;
        // A packet that meets the cut meanwhile is known for a moment only: what is remembered is deleted right away.
        for flows in found.flows.chunks(TOGETHER) {
            (self.known)(flows);
            conntrack.delete(flows)?;
        }
        Ok(())
    }
}

/// The halves of conntrack in which entries of these destinations are.
fn halves(gone: &HashSet<Pair>) -> impl Iterator<Item = Half> {
    let is_in = |half| gone.iter().any(|pair| Half::of(pair.destination.ip()) == half);
    [Half::V4, Half::V6].into_iter().filter(move |half| is_in(*half))
}

/// What of these changes has deleted destinations of datagrams. A firewall mark says nothing of addresses.
fn deleted_datagrams(changes: &[Change], outcomes: &[Outcome]) -> HashSet<Pair> {
    let done = changes.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Done);
    let pairs = done.filter_map(|(change, _)| match change {
        Change::DeleteDestination(service @ ServiceKey::Address { protocol, .. }, destination)
            if matches!(*protocol, Protocol::UDP | Protocol::SCTP) =>
        {
            Some(Pair { service: *service, destination: *destination })
        }
        _ => None,
    });
    pairs.collect()
}

/// How the kernel is set in the calling thread's network namespace.
pub fn ground(enforce: bool) -> Ground {
    Ground { enforce, flushes: is_on("expire_nodest_conn") }
}

/// Whether a switch of IPVS is on.
fn is_on(name: &str) -> bool {
    sysctl::number(&format!("net/ipv4/vs/{name}")).is_some_and(|value| value != 0)
}

/// Whether anybody else on this machine could run now, or does so on another processor.
fn others_run() -> bool {
    !std::fs::read_to_string("/proc/loadavg").is_ok_and(|text| is_alone(&text))
}

/// Whether of all threads one is runnable, which is the one that asks: the fourth word of the file (`loadavg_proc_show`, fs/proc/loadavg.c).
fn is_alone(loadavg: &str) -> bool {
    loadavg.split_whitespace().nth(3).is_some_and(|word| word.starts_with("1/"))
}

impl Tables for Kernel {
    fn now(&self) -> Duration {
        Duration::from_nanos(monotonic_ns())
    }

    fn give_way(&self) {
        if others_run() {
            std::thread::sleep(GIVE_WAY);
        }
    }

    fn keys(&mut self) -> Result<Listed<ServiceKey>, ipvs::Error> {
        self.ipvs.keys()
    }

    fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, ipvs::Error> {
        self.ipvs.service(key)
    }

    fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, ipvs::Error> {
        self.ipvs.destinations(key)
    }

    fn may_have(&mut self, key: &ServiceKey, is: &dyn Fn(SocketAddr) -> bool) -> Result<bool, ipvs::Error> {
        self.ipvs.may_have(key, is)
    }

    fn apply(&mut self, changes: &[Change]) -> Applied {
        let applied = self.ipvs.apply(changes);
        self.gone.extend(deleted_datagrams(changes, &applied.outcomes));
        applied
    }

    fn settle(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        for half in halves(&gone) {
            // One of them may fail for reasons of its own.
            if let Err(error) = self.forget_datagrams(half, &gone) {
                tracing::debug!(%error, "conntrack entries of deleted destinations are left to IPVS");
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conntrack::Tuple;

    #[test]
    fn who_alone_wants_the_processor_keeps_it() {
        assert!(is_alone("0.20 0.18 0.12 1/80 11206\n"));
        for others in ["0.20 0.18 0.12 2/80 11206\n", "0.20 0.18 0.12 11/80 11206\n", "0.20 0.18", ""] {
            assert!(!is_alone(others), "{others:?}");
        }
    }

    fn key(number: u8, protocol: Protocol) -> ServiceKey {
        ServiceKey::Address { address: ([10, 96, 0, number], 53).into(), protocol }
    }

    fn pair(number: u8, protocol: Protocol) -> Pair {
        Pair { service: key(number, protocol), destination: ([10, 244, 2, 1], 5353).into() }
    }

    /// What a client sent to this address and the backend answers.
    fn flow(dst: [u8; 4], dst_port: u16) -> Flow {
        let (client, protocol) = (Addr::v4([192, 0, 2, 9]), 17);
        let end = |src, src_port, dst, dst_port| Tuple { src, dst, src_port, dst_port, protocol };
        Flow {
            orig: end(client, 4000, Addr::v4(dst), dst_port),
            reply: end(Addr::v4([10, 244, 2, 1]), 5353, client, 4000),
            tcp: None,
            liberal: false,
            status: 0,
            zone: None,
            id: 1,
            timeout: 30,
        }
    }

    #[test]
    fn only_what_was_deleted_loses_its_entries() {
        let delete = |pair: Pair| Change::DeleteDestination(pair.service, pair.destination);
        let mark = ServiceKey::Mark { family: ipvs::Family::V4, mark: 9 };
        let lowered = Destination::new(pair(5, Protocol::UDP).destination, 0);
        let changes = [
            delete(pair(1, Protocol::UDP)),
            delete(pair(2, Protocol::UDP)),
            delete(pair(3, Protocol::TCP)),
            delete(Pair { service: mark, ..pair(4, Protocol::UDP) }),
            Change::SetDestination(key(5, Protocol::UDP), lowered),
            delete(pair(6, Protocol::SCTP)),
            delete(pair(7, Protocol::UDP)),
        ];
        let mut outcomes = [Outcome::Done; 7];
        (outcomes[1], outcomes[6]) = (Outcome::Refused(12), Outcome::Unknown);
        let gone = deleted_datagrams(&changes, &outcomes);
        assert_eq!(gone, [pair(1, Protocol::UDP), pair(6, Protocol::SCTP)].into());
        assert!(halves(&gone).eq([Half::V4]));
        assert_eq!(halves(&HashSet::new()).count(), 0);
        let v6 = Pair { destination: ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 53).into(), ..pair(1, Protocol::UDP) };
        assert!(halves(&[v6].into()).eq([Half::V6]));
        assert!(halves(&[v6, pair(1, Protocol::UDP)].into()).eq([Half::V4, Half::V6]));
        // The same endpoint behind another service, and asked directly, is another matter.
        assert!(gone.contains(&pair_of(&flow([10, 96, 0, 1], 53))));
        assert!(!gone.contains(&pair_of(&flow([10, 96, 0, 2], 53))));
        assert!(!gone.contains(&pair_of(&flow([10, 244, 2, 1], 5353))));
    }
}
