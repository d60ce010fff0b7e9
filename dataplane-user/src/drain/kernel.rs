use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use nodefence_common::Addr;

use super::Tables;
use crate::{
    conntrack::{self, Conntrack, Dump, Family as Half, Flow, List, TcpState, WantedFlow},
    flags::monotonic_ns,
    ipvs::{self, Applied, Change, ChangeOutcome, Destination, Ipvs, Listed, Protocol, Service, ServiceKey},
    ledger::Pair,
    plan::drain::{Counts, DrainSettings},
    sysctl,
};

/// How long others may have the processor.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// Called with conntrack entries before they are deleted.
pub type Known = Box<dyn FnMut(&[Flow]) + Send>;

/// The tables of the network namespace in which they were opened. Blocking.
pub struct Kernel {
    ipvs: Ipvs,
    conntrack: Option<Conntrack>,
    list: Box<dyn List + Send>,
    known: Known,
    /// Deleted destinations of datagrams whose conntrack entries are yet to be deleted.
    gone: HashSet<Pair>,
    /// Conntrack entries of destinations that are ours, as last listed. A destination of weight 0 gets no new ones.
    left: Left,
}

/// Entries by destination. An entry that was looked up and not found is removed. A destination that was not listed is missing.
type Left = HashMap<Pair, Vec<Flow>>;

/// How many conntrack entries are remembered and deleted together, or looked up.
const TOGETHER: usize = 64;

impl Kernel {
    /// Opens the tables, and of conntrack this zone alone. `list` lists conntrack; without it a socket of its own does.
    ///
    /// # Errors
    /// As [`Ipvs::open`]. Without conntrack a fixed time is waited instead of counting.
    pub fn open(known: Known, zone: u16, list: Option<Box<dyn List + Send>>) -> Result<Self, ipvs::Error> {
        let conntrack = Conntrack::open(zone).ok();
        let list = list.unwrap_or_else(|| Box::new(Alone(zone)));
        Ok(Self { ipvs: Ipvs::open()?, conntrack, list, known, gone: HashSet::new(), left: Left::new() })
    }

    /// Lists the conntrack entries of all these destinations, as their services sent them there: the same destination may belong to other
    /// services. Entries of datagrams to destinations in `gone` are deleted. IPVS deletes them with its connections, some milliseconds
    /// later. Until then it drops packets of a confirmed entry (`ip_vs_in`, net/netfilter/ipvs/ip_vs_core.c); without the entry it sends
    /// the packet elsewhere at once.
    fn survey(&mut self, ours: &[Pair], gone: &HashSet<Pair>) -> Result<(), Arc<conntrack::Error>> {
        self.left.clear();
        let Some(conntrack) = &mut self.conntrack else { return Ok(()) };
        let ours: Arc<HashSet<Pair>> =
            Arc::new(ours.iter().chain(gone).filter(|pair| is_address(&pair.service)).copied().collect());
        let backends: Arc<HashSet<Addr>> =
            Arc::new(ours.iter().map(|pair| pair.destination.ip().into()).collect());
        let wanted = halves(&ours).map(|half| {
            let ours = Arc::clone(&ours);
            let backends = Arc::clone(&backends);
            let keep = move |flow: &Flow| {
                backends.contains(&flow.reply.src) && is_open(flow) && ours.contains(&pair_of(flow))
            };
            (half, Box::new(keep) as WantedFlow)
        });
        let listed = self.list.list(wanted.collect())?;
        let mut left: Left = ours.iter().map(|pair| (*pair, Vec::new())).collect();
        for dump in listed {
            let (of_gone, others): (Vec<Flow>, Vec<Flow>) =
                dump.flows.into_iter().partition(|flow| gone.contains(&pair_of(flow)));
            // A packet that meets the cut meanwhile is remembered for a moment only: a flow is deleted as soon as it is remembered.
            for flows in of_gone.chunks(TOGETHER) {
                (self.known)(flows);
                conntrack.delete(flows)?;
            }
            for flow in others {
                left.entry(pair_of(&flow)).or_default().push(flow);
            }
        }
        self.left = left;
        Ok(())
    }
}

/// Lists by a new socket each time, in this zone.
struct Alone(u16);

impl List for Alone {
    fn list(&mut self, wanted: Vec<(Half, WantedFlow)>) -> Result<Vec<Dump>, Arc<conntrack::Error>> {
        Conntrack::open(self.0)?.list(wanted)
    }
}

/// Whether a connection may still go on by this entry.
fn is_open(flow: &Flow) -> bool {
    flow.tcp != Some(TcpState::Close)
}

/// Removes entries that are gone, from the end up to a batch that has some left: the exact number does not matter.
fn drop_gone(conntrack: &mut Conntrack, flows: &mut Vec<Flow>) -> Result<(), conntrack::Error> {
    while !flows.is_empty() {
        let last = flows.split_off(flows.len().saturating_sub(TOGETHER));
        let mut there = conntrack.still_there(&last)?;
        there.retain(is_open);
        if !there.is_empty() {
            flows.extend(there);
            break;
        }
    }
    Ok(())
}

/// The address families in which these destinations have entries.
fn halves(pairs: &HashSet<Pair>) -> impl Iterator<Item = Half> {
    let is_in = |half| pairs.iter().any(|pair| Half::of(pair.destination.ip()) == half);
    [Half::V4, Half::V6].into_iter().filter(move |half| is_in(*half))
}

/// The destination that has a weight by this change, or had one until now: it may have connections that were not listed.
fn weighed(change: &Change) -> Option<Pair> {
    match change {
        Change::SetDestination(service, destination) => {
            Some(Pair { service: *service, destination: destination.address })
        }
        Change::NewDestination(service, destination) if destination.weight != 0 => {
            Some(Pair { service: *service, destination: destination.address })
        }
        _ => None,
    }
}

/// The destinations of datagrams that these changes deleted. A firewall mark says nothing of addresses.
fn deleted_datagrams(changes: &[Change], outcomes: &[ChangeOutcome]) -> HashSet<Pair> {
    let done = changes.iter().zip(outcomes).filter(|(_, outcome)| **outcome == ChangeOutcome::Done);
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
pub fn drain_settings(enforce: bool) -> DrainSettings {
    DrainSettings { enforce, flushes: is_on("expire_nodest_conn") }
}

/// Whether a switch of IPVS is on.
fn is_on(name: &str) -> bool {
    sysctl::number(&format!("net/ipv4/vs/{name}")).is_some_and(|value| value != 0)
}

/// Whether any other thread on this machine could run now, or runs on another processor.
fn others_run() -> bool {
    !std::fs::read_to_string("/proc/loadavg").is_ok_and(|text| is_alone(&text))
}

/// Whether only one thread is runnable, which is the calling one: the fourth word of the file (`loadavg_proc_show`, fs/proc/loadavg.c).
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
        for pair in changes.iter().filter_map(weighed) {
            self.left.remove(&pair);
        }
        applied
    }

    fn settle(&mut self, ours: &[Pair]) {
        let gone = std::mem::take(&mut self.gone);
        if gone.is_empty() {
            return;
        }
        if let Err(error) = self.survey(ours, &gone) {
            tracing::debug!(
                event = "ipvs-conntrack-left",
                %error,
                "conntrack entries of deleted destinations are left to IPVS"
            );
        }
    }

    /// Counts by the service's address and port and the source of the answers: flows that were sent to a backend directly are not counted.
    /// A firewall mark says nothing of addresses. Behind tunnels the answers do not show the backend: no entry is found, and the
    /// destination's counters decide.
    fn count(&mut self, pairs: &[Pair], ours: &[Pair]) -> Counts {
        if !is_on("conntrack") {
            return Counts::new();
        }
        let direct = || pairs.iter().filter(|pair| is_address(&pair.service));
        if direct().any(|pair| !self.left.contains_key(pair)) && self.survey(ours, &HashSet::new()).is_err() {
            return Counts::new();
        }
        let Some(conntrack) = &mut self.conntrack else { return Counts::new() };
        let mut counts = Counts::new();
        for pair in direct() {
            let Some(flows) = self.left.get_mut(pair) else { continue };
            if drop_gone(conntrack, flows).is_err() {
                return Counts::new();
            }
            counts.insert(*pair, flows.len());
        }
        counts
    }

    fn forget_flows(&mut self) {
        self.left = Left::new();
    }
}

fn is_address(key: &ServiceKey) -> bool {
    matches!(key, ServiceKey::Address { .. })
}

/// The pair of a flow that was sent to an address.
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

    /// A flow from a client to this address, which the backend answers.
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
    fn what_has_a_weight_may_have_more_connections_than_were_listed() {
        let pair = pair(1, Protocol::TCP);
        let with = |weight| Destination::new(pair.destination, weight);
        // The destination had a weight until now, or has one again.
        assert_eq!(weighed(&Change::SetDestination(pair.service, with(0))), Some(pair));
        assert_eq!(weighed(&Change::SetDestination(pair.service, with(1))), Some(pair));
        assert_eq!(weighed(&Change::NewDestination(pair.service, with(1))), Some(pair));
        assert_eq!(weighed(&Change::NewDestination(pair.service, with(0))), None);
        assert_eq!(weighed(&Change::DeleteDestination(pair.service, pair.destination)), None);
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
        let mut outcomes = [ChangeOutcome::Done; 7];
        (outcomes[1], outcomes[6]) = (ChangeOutcome::Refused(12), ChangeOutcome::Unknown);
        let gone = deleted_datagrams(&changes, &outcomes);
        assert_eq!(gone, [pair(1, Protocol::UDP), pair(6, Protocol::SCTP)].into());
        assert!(halves(&gone).eq([Half::V4]));
        assert_eq!(halves(&HashSet::new()).count(), 0);
        let v6 = Pair { destination: ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 53).into(), ..pair(1, Protocol::UDP) };
        assert!(halves(&[v6].into()).eq([Half::V6]));
        assert!(halves(&[v6, pair(1, Protocol::UDP)].into()).eq([Half::V4, Half::V6]));
        // The same endpoint behind another service, and addressed directly, is another matter.
        assert!(gone.contains(&pair_of(&flow([10, 96, 0, 1], 53))));
        assert!(!gone.contains(&pair_of(&flow([10, 96, 0, 2], 53))));
        assert!(!gone.contains(&pair_of(&flow([10, 244, 2, 1], 5353))));
    }
}
