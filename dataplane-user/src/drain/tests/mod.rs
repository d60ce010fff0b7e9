mod ending;
mod exempt;
mod killed;
mod lapsed;
mod left;
mod others;
mod pace;
mod stumbles;
mod unsure;
mod urgent;
mod views;

use std::{cell::RefCell, collections::BTreeMap, net::SocketAddr, rc::Rc, time::Duration};

use super::{
    drive::Drive,
    world::{Hands, Pages, Proxy, Shared, VirtualServer, World},
};
use crate::{
    cluster::{Backend, Protocol as Transport, Scope, parse},
    ipvs::{Change, Destination, Family, Flags, Forward, Protocol, Service, ServiceKey, Tunnel, flags},
    ledger::{Pair, Phase},
    plan::drain::{CHALLENGE, Drain, DrainSettings, Flagged, WantedDestinations},
};

const MS: Duration = Duration::from_millis(1);
const ENFORCE: DrainSettings = DrainSettings { enforce: true, flushes: true };

fn at(node: u8, pod: u8) -> SocketAddr {
    ([10, 244, node, pod], 8080).into()
}

fn key(number: u8, protocol: Protocol) -> ServiceKey {
    ServiceKey::Address { address: ([10, 96, 0, number], 80).into(), protocol }
}

/// What kube-proxy wants on node `a`: the first service with these endpoints, and these services more.
fn wanted(endpoints: &str, more: &str) -> WantedDestinations {
    let text = format!(
        "nodes: [{{ name: a, address: 10.0.0.1 }}]
services:
  - name: x/web
    clusterIPs: [10.96.0.1]
    ports: [{{ port: 80, targetPort: 8080 }}]
    endpoints: [{endpoints}]
{more}"
    );
    WantedDestinations::of(&parse(&text, false).unwrap().into(), &"a".into())
}

fn node(index: u8) -> Flagged {
    let backend = |pod| Backend { address: at(index, pod).ip(), scope: Scope::Address };
    let name = format!("node-{index}").into();
    Flagged { name, backends: (1..5).map(backend).collect(), left_out: Vec::new(), challenged: false }
}

fn server(key: ServiceKey, scheduler: &str, bits: u32, destinations: Vec<Destination>) -> VirtualServer {
    let mut service = Service::new(key, scheduler.parse().unwrap());
    service.flags = Flags { bits, mask: u32::MAX };
    VirtualServer { service, destinations }
}

fn used(address: SocketAddr, weight: u32, active: u32) -> Destination {
    Destination { active, ..Destination::new(address, weight) }
}

/// One service of each kind; node 2 hangs, node 3 carries on.
fn world() -> World {
    let web = key(1, Protocol::TCP);
    let odd = Destination {
        forward: Forward::Tunnel,
        upper_threshold: 100,
        lower_threshold: 10,
        tunnel: Tunnel { kind: 1, port: 6080, flags: 1 },
        ..used(at(2, 2), 7, 3)
    };
    let servers = [
        server(web, "rr", 0, vec![used(at(2, 1), 1, 2), odd, used(at(3, 1), 1, 5)]),
        server(key(2, Protocol::UDP), "wlc", 0, vec![used(at(3, 2), 2, 4), used(at(2, 1), 2, 4)]),
        server(key(3, Protocol::SCTP), "rr", 0, vec![used(at(2, 3), 1, 1), used(at(3, 1), 1, 1)]),
        server(key(4, Protocol::TCP), "sh", 0, vec![used(at(2, 1), 1, 1), used(at(3, 1), 1, 1)]),
        server(key(5, Protocol::TCP), "mh", 0, vec![used(at(2, 1), 1, 0), used(at(3, 1), 1, 1)]),
        server(
            key(6, Protocol::TCP),
            "sh",
            flags::SCHEDULER_1,
            vec![used(at(2, 1), 1, 0), used(at(3, 1), 1, 1)],
        ),
        // Graceful termination: kube-proxy's weight of 0.
        server(key(7, Protocol::TCP), "rr", 0, vec![used(at(2, 4), 0, 2), used(at(3, 1), 1, 1)]),
        server(
            ServiceKey::Mark { family: Family::V4, mark: 9 },
            "rr",
            0,
            vec![used(at(2, 1), 3, 1), used(at(3, 1), 1, 1)],
        ),
        // No other destinations: exempt.
        server(key(8, Protocol::TCP), "rr", 0, vec![used(at(2, 1), 1, 1), used(at(2, 2), 1, 1)]),
        server(key(9, Protocol::UDP), "rr", 0, vec![used(at(2, 1), 1, 1), used(at(3, 1), 0, 1)]),
    ];
    World {
        servers: servers.into_iter().map(|server| (server.service.key, server)).collect(),
        flush: 30 * MS,
        ..World::default()
    }
}

const EXEMPT: [ServiceKey; 2] = [
    ServiceKey::Address {
        address: SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(10, 96, 0, 8), 80)),
        protocol: Protocol::TCP,
    },
    ServiceKey::Address {
        address: SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(10, 96, 0, 9), 80)),
        protocol: Protocol::UDP,
    },
];

/// An agent on a world.
struct Agent {
    world: Shared,
    drive: Drive<Hands, Pages>,
    flagged: Vec<Flagged>,
}

impl Agent {
    fn new(world: &Shared, flagged: &[Flagged]) -> Self {
        let (entries, now) = (world.borrow().entries.clone(), world.borrow().now);
        let mut machine = Drain::new(ENFORCE, entries);
        machine.set_flagged(flagged, now);
        let drive = Drive::new(machine, Hands(Rc::clone(world)), Pages(Rc::clone(world)));
        Self { world: Rc::clone(world), drive, flagged: flagged.to_vec() }
    }

    /// What kube-proxy wants.
    fn want(&mut self, wanted: WantedDestinations) {
        self.drive.machine.set_wanted(wanted);
    }

    /// The source confirms its last view.
    fn confirm(&mut self) {
        let now = self.world.borrow().now;
        self.drive.machine.confirm(now);
    }

    fn flag(&mut self, flagged: &[Flagged]) {
        self.flagged = flagged.to_vec();
        self.drive.set_flagged(flagged);
    }

    /// False where it was killed.
    fn run(&mut self, time: Duration) -> bool {
        let end = self.world.borrow().now + time;
        loop {
            let now = self.world.borrow().now;
            let due = self.drive.next(!self.flagged.is_empty()).unwrap_or(Duration::MAX);
            if due > end {
                self.world.borrow_mut().pass(end.saturating_sub(now));
                return true;
            }
            // Time passes between two rounds, as it does.
            self.world.borrow_mut().pass(due.saturating_sub(now).max(MS / 10));
            if self.drive.round().is_err() {
                return false;
            }
        }
    }

    /// As [`Self::run`], and whatever fails is tried again.
    fn live(&mut self, time: Duration) {
        let end = self.world.borrow().now + time;
        loop {
            let now = self.world.borrow().now;
            if self.run(end.saturating_sub(now)) {
                return;
            }
            self.world.borrow_mut().pass(20 * MS);
        }
    }

    fn changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.world.borrow_mut().made)
    }
}

fn shared(world: World) -> Shared {
    Rc::new(RefCell::new(world))
}

fn pairs_of_node_2(world: &World) -> Vec<(Pair, Destination)> {
    let on_2 = |pair: &Pair| pair.destination.ip().to_string().starts_with("10.244.2.");
    world.saved().into_iter().filter(|(pair, _)| on_2(pair)).collect()
}

/// Only tombstones are left of node 2, in services that have other destinations.
fn is_out(before: &World, now: &World) {
    for (pair, _) in pairs_of_node_2(before) {
        let found = destination(&now.servers[&pair.service], pair.destination);
        let was = destination(&before.servers[&pair.service], pair.destination).unwrap();
        if EXEMPT.contains(&pair.service) {
            assert_eq!(found, Some(was), "{pair}");
        } else if pair.service == key(4, Protocol::TCP) {
            assert_eq!(found, None, "{pair}");
        } else {
            let found = found.unwrap_or_else(|| panic!("{pair} is gone"));
            assert_eq!((found.weight, found.is_used()), (0, false), "{pair}");
        }
    }
    for (key, server) in &before.servers {
        for other in
            server.destinations.iter().filter(|d| d.address.ip().to_string().starts_with("10.244.3."))
        {
            assert_eq!(destination(&now.servers[key], other.address), Some(other), "{key}");
        }
    }
}

/// A destination of a server that lists them in the kernel's order.
fn destination(server: &VirtualServer, address: SocketAddr) -> Option<&Destination> {
    server.destinations.iter().find(|destination| destination.address == address)
}

#[test]
fn a_node_is_drained_and_restored() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[node(2)]);
    assert!(agent.run(200 * MS));
    let early = agent.changes();
    let deletes = |changes: &[Change]| -> Vec<ServiceKey> {
        changes
            .iter()
            .filter_map(|change| match change {
                Change::DeleteDestination(key, _) => Some(*key),
                _ => None,
            })
            .collect()
    };
    // TCP waits for the challenge of its clients. UDP and SCTP wait for nothing, nor does a destination that has no clients and would
    // refuse new ones.
    assert_eq!(deletes(&early), [key(2, Protocol::UDP), key(3, Protocol::SCTP), key(5, Protocol::TCP)]);
    let last_lowered = early.iter().rposition(|c| matches!(c, Change::SetDestination(..))).unwrap();
    let first_deleted = early.iter().position(|c| matches!(c, Change::DeleteDestination(..))).unwrap();
    assert!(last_lowered < first_deleted, "weight 0 comes first: {early:?}");
    let mut challenged = node(2);
    challenged.challenged = true;
    agent.flag(&[challenged.clone()]);
    assert!(agent.run(50 * MS));
    assert_eq!(deletes(&agent.changes()).len(), 5, "as soon as they are challenged");
    assert!(agent.run(Duration::from_secs(3)));
    is_out(&world(), &shared.borrow());
    let report = agent.drive.machine.report();
    let row = &report["node-2"];
    assert_eq!((row.drained, row.waiting, row.exempt.len()), (9, 0, 2), "{row:?}");
    assert_eq!(row.exempt[0].1, "all its destinations are on flagged nodes");
    assert_eq!(row.exempt[1].1, "its destinations on other nodes have weight 0");
    // Nothing is repeated without need.
    agent.changes();
    assert!(agent.run(Duration::from_secs(60)));
    assert_eq!(agent.changes(), []);
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    assert_eq!(shared.borrow().saved(), world().saved());
    assert!(shared.borrow().entries.is_empty() && agent.drive.machine.is_empty());
}

#[test]
fn without_an_answer_tcp_waits_for_a_while() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[node(2)]);
    let web = Pair { service: key(1, Protocol::TCP), destination: at(2, 1) };
    assert!(agent.run(CHALLENGE - 10 * MS));
    assert_eq!(shared.borrow_mut().destination(&web).map(|d| (d.weight, d.active)), Some((0, 2)));
    assert!(agent.run(30 * MS));
    assert_eq!(shared.borrow_mut().destination(&web), None);
}

#[test]
fn a_flush_that_takes_long_is_waited_for() {
    let mut slow = world();
    slow.flush = 900 * MS;
    let shared = shared(slow);
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(4)));
    is_out(&world(), &shared.borrow());
    // Added once each: no connection was revived.
    let added = agent.changes().iter().filter(|c| matches!(c, Change::NewDestination(..))).count();
    assert_eq!(added, 7);
}

#[test]
fn without_expire_nodest_conn_nothing_is_deleted() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    agent.drive.set_settings(DrainSettings { flushes: false, ..ENFORCE });
    assert!(agent.run(Duration::from_secs(10)));
    assert!(
        agent.changes().iter().all(|change| matches!(change, Change::SetDestination(_, d) if d.weight == 0))
    );
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    assert_eq!(shared.borrow().saved(), world().saved());
}

#[test]
fn observing_touches_nothing() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[node(2)]);
    agent.drive.set_settings(DrainSettings { enforce: false, ..ENFORCE });
    assert!(agent.run(Duration::from_secs(3)));
    assert_eq!((agent.changes(), shared.borrow().entries.len()), (vec![], 0));
    let report = agent.drive.machine.report();
    assert_eq!((report["node-2"].planned, report["node-2"].exempt.len()), (9, 2));
}

/// A replacement of kube-proxy comes and goes while a node is flagged.
#[test]
fn what_is_drained_is_restored_at_once_where_it_is_only_observed_and_drained_again() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    is_out(&world(), &shared.borrow());
    agent.drive.set_settings(DrainSettings { enforce: false, ..ENFORCE });
    assert!(agent.run(Duration::from_millis(500)));
    assert_eq!(shared.borrow().saved(), world().saved());
    assert_eq!(agent.drive.machine.report()["node-2"].planned, 9);
    agent.drive.set_settings(ENFORCE);
    assert!(agent.run(Duration::from_millis(500)));
    is_out(&world(), &shared.borrow());
}

#[test]
fn a_host_network_backend_is_its_port() {
    let backend = |port| Backend { address: at(2, 1).ip(), scope: Scope::Port(port, Transport::Tcp) };
    for (port, out) in [(8080, true), (10_250, false)] {
        let shared = shared(world());
        let flagged = Flagged {
            name: "node-2".into(),
            backends: vec![backend(port)],
            left_out: Vec::new(),
            challenged: true,
        };
        let mut agent = Agent::new(&shared, &[flagged]);
        assert!(agent.run(Duration::from_secs(3)));
        let weight = |service| {
            let pair = Pair { service, destination: at(2, 1) };
            shared.borrow_mut().destination(&pair).map(|d| d.weight)
        };
        assert_eq!(weight(key(1, Protocol::TCP)), Some(u32::from(!out)));
        assert_eq!(weight(key(2, Protocol::UDP)), Some(2), "another protocol");
    }
}

/// Graceful termination of kube-proxy, before and during the tombstone.
#[test]
fn what_kube_proxy_removes_stays_removed() {
    let shared = shared(world());
    let web = key(1, Protocol::TCP);
    let mut proxy = Proxy::default();
    proxy.wanted.insert(web, vec![at(2, 1), at(2, 2), at(3, 1)]);
    proxy.wanted.insert(key(7, Protocol::TCP), vec![at(3, 1)]);
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    proxy.wanted.get_mut(&web).unwrap().retain(|address| *address != at(2, 1));
    proxy.sync(&mut shared.borrow_mut());
    assert!(agent.run(Duration::from_secs(1)));
    let pair = Pair { service: web, destination: at(2, 1) };
    assert!(!shared.borrow().entries.contains_key(&pair));
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    let mut expected = world().saved();
    expected.remove(&pair);
    expected.remove(&Pair { service: key(7, Protocol::TCP), destination: at(2, 4) });
    assert_eq!(shared.borrow().saved(), expected);
}

/// kube-proxy adds what is missing and, after a restart, sets every weight to 1.
#[test]
fn what_kube_proxy_undoes_is_done_again() {
    let shared = shared(world());
    let mut proxy = Proxy::default();
    for (key, server) in &shared.borrow().servers {
        let weighted = server.destinations.iter().filter(|d| d.weight > 0);
        proxy.wanted.insert(*key, weighted.map(|d| d.address).collect());
    }
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    for round in 0..60 {
        proxy.restarted = round % 7 == 0;
        proxy.sync(&mut shared.borrow_mut());
        if round % 3 == 0 {
            shared.borrow_mut().connect();
        }
        assert!(agent.run(500 * MS));
        if round < 3 {
            continue;
        }
        for (pair, found) in pairs_of_node_2(&shared.borrow()) {
            assert!(EXEMPT.contains(&pair.service) || found.weight == 0, "{pair} after {round}");
        }
    }
    proxy.sync(&mut shared.borrow_mut());
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(1)));
    proxy.sync(&mut shared.borrow_mut());
    let saved = shared.borrow().saved();
    // kube-proxy's own choice: weight 1 where it has set one.
    let addresses: Vec<Pair> = saved.keys().copied().collect();
    let drained = [Pair { service: key(7, Protocol::TCP), destination: at(2, 4) }];
    let expected: Vec<Pair> = world().saved().into_keys().filter(|pair| !drained.contains(pair)).collect();
    assert_eq!(addresses.iter().filter(|p| !drained.contains(p)).copied().collect::<Vec<_>>(), expected);
    assert!(saved.iter().all(|(pair, d)| d.weight > 0 || world().saved()[pair].weight == 0), "{saved:?}");
}

#[test]
fn the_ledger_knows_the_deepest_phase() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    let phases: BTreeMap<Pair, Phase> = shared.borrow().entries.iter().map(|(p, e)| (*p, e.phase)).collect();
    let web = Pair { service: key(1, Protocol::TCP), destination: at(2, 1) };
    let sh = Pair { service: key(4, Protocol::TCP), destination: at(2, 1) };
    let idle = Pair { service: key(6, Protocol::TCP), destination: at(2, 1) };
    assert_eq!(
        (phases[&web], phases[&sh], phases[&idle]),
        (Phase::Tombstone, Phase::Deleted, Phase::Lowered)
    );
}
