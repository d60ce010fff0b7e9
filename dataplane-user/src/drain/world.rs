//! A kernel table, a ledger and a kube-proxy that can be stopped at any step.
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use super::{Book, Tables, restore};
use crate::{
    ipvs::{self, Applied, Change, ChangeOutcome, Destination, Listed, Service, ServiceKey},
    ledger::{self, Entry, Pair, Record},
    plan::drain::Counts,
};

/// A service with its destinations.
#[derive(Clone, Debug)]
pub(super) struct VirtualServer {
    pub(super) service: Service,
    pub(super) destinations: Vec<Destination>,
}

/// The kernel with its connections.
#[derive(Default)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) servers: BTreeMap<ServiceKey, VirtualServer>,
    /// Connections of deleted destinations, and when the kernel will have flushed them.
    pub(super) trash: BTreeMap<Pair, (u32, Duration)>,
    /// How long a flush takes.
    pub(super) flush: Duration,
    /// How long it takes to read one service, and to count connections.
    pub(super) reading: Duration,
    pub(super) counting: Duration,
    /// Somebody has the turn.
    pub(super) turn: bool,
    /// How often [`Tables::settle`] was called.
    pub(super) settled: usize,
    /// How many services were read, and how many of them as a whole.
    pub(super) read: usize,
    pub(super) read_whole: usize,
    /// What the ledger says.
    pub(super) entries: BTreeMap<Pair, Entry>,
    /// Changes of ours that were made.
    pub(super) made: Vec<Change>,
    /// Steps until the agent is killed; `None`: never.
    pub(super) fuse: Option<usize>,
    /// The agent's readings, changes and lines until one fails; then until the next one fails, and so on.
    pub(super) stumbles: Vec<usize>,
    /// No line can be written.
    pub(super) full: bool,
    pub(super) lapsed: bool,
    /// Batches of changes until the agent stands still with one under way, and the guard restores; `None`: never.
    pub(super) stops: Option<usize>,
    /// The tables do not answer.
    pub(super) deaf: bool,
    /// Services that a list lacks. The list is incomplete then and has the others twice.
    pub(super) passed_over: BTreeSet<ServiceKey>,
    /// Services of which only the key can be read.
    pub(super) unreadable: BTreeSet<ServiceKey>,
}

pub(super) type Shared = Rc<RefCell<World>>;

impl World {
    /// One step of the agent. False where it is dead.
    fn step(&mut self) -> bool {
        match &mut self.fuse {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Whether this step fails.
    fn stumbles(&mut self) -> bool {
        match self.stumbles.first_mut() {
            None => false,
            Some(0) => {
                self.stumbles.remove(0);
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.trash.retain(|_, (_, at)| *at > now);
    }

    pub(super) fn destination(&mut self, pair: &Pair) -> Option<&mut Destination> {
        let server = self.servers.get_mut(&pair.service)?;
        server.destinations.iter_mut().find(|destination| destination.address == pair.destination)
    }

    /// Makes a change as the kernel does.
    pub(super) fn change(&mut self, change: &Change) -> ChangeOutcome {
        let service = match change {
            Change::NewService(service) => {
                let new = VirtualServer { service: service.clone(), destinations: Vec::new() };
                return match self.servers.insert(service.key, new) {
                    None => ChangeOutcome::Done,
                    Some(_) => unreachable!("nobody adds a service twice"),
                };
            }
            Change::DeleteService(key) => {
                self.trash.retain(|pair, _| pair.service != *key);
                return if self.servers.remove(key).is_some() {
                    ChangeOutcome::Done
                } else {
                    ChangeOutcome::NoService
                };
            }
            Change::SetService(_) => unreachable!("nobody does that"),
            Change::NewDestination(key, _)
            | Change::SetDestination(key, _)
            | Change::DeleteDestination(key, _) => *key,
        };
        if !self.servers.contains_key(&service) {
            return ChangeOutcome::NoService;
        }
        let address = match change {
            Change::NewDestination(_, destination) | Change::SetDestination(_, destination) => {
                destination.address
            }
            Change::DeleteDestination(_, address) => *address,
            _ => unreachable!(),
        };
        let pair = Pair { service, destination: address };
        let there = self.destination(&pair);
        match (change, there) {
            (Change::NewDestination(..), Some(_)) => return ChangeOutcome::Exists,
            (Change::SetDestination(_, new), Some(old)) => {
                let Destination { active, inactive, persistent, .. } = *old;
                *old = Destination { active, inactive, persistent, ..new.clone() };
                return ChangeOutcome::Done;
            }
            (_, None) if !matches!(change, Change::NewDestination(..)) => {
                return ChangeOutcome::NoDestination;
            }
            _ => {}
        }
        let connections = self.trash.remove(&pair).map_or(0, |(connections, _)| connections);
        let until = self.now + self.flush;
        let server = self.servers.get_mut(&service).unwrap();
        if let Change::NewDestination(_, new) = change {
            // At the list's head, with the connections that it had.
            let new = Destination { active: connections, inactive: 0, persistent: 0, ..new.clone() };
            server.destinations.insert(0, new);
        } else {
            let at =
                server.destinations.iter().position(|destination| destination.address == address).unwrap();
            let gone = server.destinations.remove(at);
            self.trash.insert(pair, (gone.active, until));
        }
        ChangeOutcome::Done
    }

    /// Opens a connection to each destination with weight.
    pub(super) fn connect(&mut self) {
        for server in self.servers.values_mut() {
            for destination in server.destinations.iter_mut().filter(|destination| destination.weight > 0) {
                destination.active += 1;
            }
        }
    }

    /// The sum of the weights of each service's destinations.
    fn weights(&self) -> BTreeMap<ServiceKey, u32> {
        let weight = |server: &VirtualServer| server.destinations.iter().map(|found| found.weight).sum();
        self.servers.iter().map(|(key, server)| (*key, weight(server))).collect()
    }

    /// What `ipvsadm -S` would print, sorted.
    pub(super) fn saved(&self) -> BTreeMap<Pair, Destination> {
        let mut saved = BTreeMap::new();
        for (key, server) in &self.servers {
            for found in &server.destinations {
                let plain = Destination { active: 0, inactive: 0, persistent: 0, ..found.clone() };
                saved.insert(Pair { service: *key, destination: found.address }, plain);
            }
        }
        saved
    }
}

/// kube-proxy's idea of the table (`syncEndpoint`, pkg/proxy/ipvs/proxier.go; `GracefulTerminationManager`).
#[derive(Default)]
pub(super) struct Proxy {
    pub(super) wanted: BTreeMap<ServiceKey, Vec<SocketAddr>>,
    pub(super) restarted: bool,
}

impl Proxy {
    pub(super) fn sync(&mut self, world: &mut World) {
        for (key, wanted) in &self.wanted {
            let Some(server) = world.servers.get(key) else { continue };
            let present = server.destinations.clone();
            for address in wanted {
                let there = present.iter().find(|destination| destination.address == *address);
                match there {
                    None => {
                        let _done =
                            world.change(&Change::NewDestination(*key, Destination::new(*address, 1)));
                    }
                    Some(there) if self.restarted && there.weight != 1 => {
                        let raised = Destination { weight: 1, ..there.clone() };
                        let _done = world.change(&Change::SetDestination(*key, raised));
                    }
                    Some(_) => {}
                }
            }
            for left in present.iter().filter(|destination| !wanted.contains(&destination.address)) {
                if left.active == 0 {
                    let _gone = world.change(&Change::DeleteDestination(*key, left.address));
                } else if left.weight != 0 {
                    let drained = Destination { weight: 0, ..left.clone() };
                    let _gone = world.change(&Change::SetDestination(*key, drained));
                }
            }
        }
        self.restarted = false;
    }
}

/// The lease lapses, and the guard restores what the ledger names and strikes it.
pub(super) fn lapse(world: &Shared) {
    world.borrow_mut().lapsed = true;
    let entries = std::mem::take(&mut world.borrow_mut().entries);
    let restored = restore(&mut Hands(Rc::clone(world)), &entries).unwrap();
    assert!(restored.left.is_empty());
}

/// The agent's access to the tables: dead after the fuse, as after SIGKILL.
pub(super) struct Hands(pub(super) Shared);

fn stumbled() -> ipvs::Error {
    ipvs::Error::Io { request: "reading", source: std::io::ErrorKind::Interrupted.into() }
}

fn dead() -> ipvs::Error {
    ipvs::Error::Io { request: "change", source: std::io::Error::other("killed") }
}

impl Hands {
    fn read(&mut self, key: &ServiceKey) -> Result<Vec<Destination>, ipvs::Error> {
        let mut world = self.0.borrow_mut();
        let reading = world.reading;
        world.pass(reading);
        world.read += 1;
        if world.stumbles() {
            return Err(stumbled());
        }
        let server = world.servers.get(key);
        Ok(server.map(|server| server.destinations.clone()).unwrap_or_default())
    }
}

impl Tables for Hands {
    fn now(&self) -> Duration {
        self.0.borrow().now
    }

    fn give_way(&self) {
        self.0.borrow_mut().now += Duration::from_millis(1);
    }

    fn keys(&mut self) -> Result<Listed<ServiceKey>, ipvs::Error> {
        if self.0.borrow().deaf {
            return Err(dead());
        }
        let world = self.0.borrow();
        let listed = || world.servers.keys().filter(|key| !world.passed_over.contains(key)).copied();
        let incomplete = !world.passed_over.is_empty();
        let again = listed().filter(|_| incomplete);
        Ok(Listed { items: listed().chain(again).collect(), malformed: 0, incomplete })
    }

    fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, ipvs::Error> {
        let world = self.0.borrow();
        if world.unreadable.contains(key) {
            return Err(ipvs::Error::Malformed { request: "service" });
        }
        Ok(world.servers.get(key).map(|server| server.service.clone()))
    }

    fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, ipvs::Error> {
        self.0.borrow_mut().read_whole += 1;
        let items = self.read(key)?;
        Ok(Listed { items, malformed: 0, incomplete: false })
    }

    fn may_have(&mut self, key: &ServiceKey, is: &dyn Fn(SocketAddr) -> bool) -> Result<bool, ipvs::Error> {
        Ok(self.read(key)?.iter().any(|destination| is(destination.address)))
    }

    fn apply(&mut self, changes: &[Change]) -> Applied {
        let stops = self.0.borrow().stops;
        self.0.borrow_mut().stops = stops.and_then(|left| left.checked_sub(1));
        if stops == Some(0) {
            lapse(&self.0);
        }
        let mut world = self.0.borrow_mut();
        let mut applied = Applied { outcomes: vec![ChangeOutcome::Unknown; changes.len()], failure: None };
        for (change, outcome) in changes.iter().zip(&mut applied.outcomes) {
            // Killed before the change, or after it and before its outcome is known.
            if world.stumbles() {
                applied.failure = Some(stumbled());
                return applied;
            }
            if !world.step() {
                applied.failure = Some(dead());
                return applied;
            }
            let before = world.weights();
            let made = world.change(change);
            for (key, weight) in world.weights() {
                let had = before.get(&key).is_some_and(|before| *before > 0);
                assert!(weight > 0 || !had, "{change:?} leaves {key} with nobody");
            }
            world.made.push(change.clone());
            world.pass(Duration::from_micros(20));
            if world.stumbles() {
                applied.failure = Some(stumbled());
                return applied;
            }
            *outcome = made;
            if !world.step() {
                applied.failure = Some(dead());
                return applied;
            }
        }
        applied
    }

    fn settle(&mut self, _: &[Pair]) {
        let mut world = self.0.borrow_mut();
        assert!(!world.turn, "the guard waits for it");
        world.settled += 1;
    }

    fn count(&mut self, pairs: &[Pair], ours: &[Pair]) -> Counts {
        assert!(pairs.iter().all(|pair| ours.contains(pair)), "{pairs:?} of {ours:?}");
        let counting = self.0.borrow().counting;
        self.0.borrow_mut().pass(counting);
        let world = self.0.borrow();
        let count = |pair: &Pair| world.trash.get(pair).map_or(0, |(count, _)| *count as usize);
        pairs.iter().map(|pair| (*pair, count(pair))).collect()
    }

    fn forget_flows(&mut self) {}
}

/// The ledger in memory. Its lines survive the agent.
pub(super) struct Pages(pub(super) Shared);

impl Pages {
    fn write(&self, records: &[Record]) -> Result<(), ledger::Error> {
        let mut world = self.0.borrow_mut();
        for record in records {
            if world.full || world.stumbles() {
                return Err(ledger::Error::test("extend"));
            }
            if !world.step() {
                return Err(ledger::Error::test("write to"));
            }
            match record.clone() {
                Record::Own(pair, entry) => drop(world.entries.insert(pair, entry)),
                Record::Phase(pair, phase) => match world.entries.get_mut(&pair) {
                    Some(entry) => entry.phase = phase,
                    None => assert!(world.lapsed, "{pair} is not in the ledger"),
                },
                Record::Drop(pair) => drop(world.entries.remove(&pair)),
            }
        }
        Ok(())
    }
}

/// The turn, held until this is dropped.
pub(super) struct Lock(Shared);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.borrow_mut().turn = false;
    }
}

impl Book for Pages {
    type Lock = Lock;

    fn begin(&mut self, records: &[Record]) -> Result<Option<Lock>, ledger::Error> {
        if self.0.borrow().lapsed {
            return Ok(None);
        }
        self.write(records)?;
        self.0.borrow_mut().turn = true;
        Ok(Some(Lock(Rc::clone(&self.0))))
    }

    fn is_ours(&self) -> bool {
        !self.0.borrow().lapsed
    }

    fn alive(&mut self) {}

    fn write_all(&mut self, entries: &BTreeMap<Pair, Entry>) -> Result<(), ledger::Error> {
        let mut world = self.0.borrow_mut();
        if world.full || world.stumbles() {
            return Err(ledger::Error::test("extend"));
        }
        world.entries.clone_from(entries);
        Ok(())
    }

    fn note(&mut self, records: &[Record]) -> Result<(), ledger::Error> {
        self.write(records)
    }

    fn rest(
        &mut self,
        count: usize,
        entries: impl FnOnce() -> BTreeMap<Pair, Entry>,
    ) -> Result<(), ledger::Error> {
        // Between two rounds the ledger and the machine agree.
        assert_eq!(entries(), self.0.borrow().entries);
        assert_eq!(count, self.0.borrow().entries.len());
        Ok(())
    }
}
