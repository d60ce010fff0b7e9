//! The thread `verdicts` with maps of the tests' own. The Enforcer decides what the thread is to do, and is tested by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    time::Instant,
};

use nodefence_common::{NodeEntry, PortKey};

use super::*;
use crate::{
    agent::{
        builder::Builder,
        outlets::{Bells, TablesWork},
        threads::Fallen,
        world::{Published, World},
    },
    cluster::parse,
    dataplane::{
        self,
        probe::{Finding, Findings},
    },
    enforce::{
        Auto, Change, Claim, ClaimSource, EnforcerSettings, NewClaim, Refusal, SaveState, Saved, Share,
    },
    plan::{Indices, Mode, Policy, name_field},
    proxy::Judgement,
};

const NODES: &str = "nodes:
- {name: a, address: 10.0.0.1}
- {name: b, address: 10.0.0.2, backends: [{address: 10.1.0.2}]}
- {name: c, address: 10.0.0.3, backends: [{address: 10.1.0.3}]}
- {name: d, address: 10.0.0.4, backends: [{address: 10.1.0.4}]}
";

const POLICY: Policy<'static> =
    Policy { own_node: "a", mode: Mode::Enforce, answer: crate::plan::Answer::Refuse };

/// The entries that were written, and the places where writes are refused.
#[derive(Default)]
struct Map {
    entries: BTreeMap<u32, NodeEntry>,
    exempt: BTreeSet<PortKey>,
    refused: Vec<u32>,
    /// Up to when what is drained from IPVS holds.
    lease: u64,
    world: Option<Arc<Published>>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Map>>);

impl Writer for Shared {
    fn write(&mut self, index: u32, entry: &NodeEntry) -> Result<(), dataplane::Error> {
        let mut map = self.0.lock().unwrap();
        if map.refused.contains(&index) {
            return Err(dataplane::Error::NodeIndex(index));
        }
        if let Some(world) = map.world.as_ref().filter(|_| entry.verdict != 0) {
            // Whoever gets a packet that is cut finds why.
            let world = world.now();
            let mut told = world.held.enforced.iter().chain(world.held.lapsing.iter());
            assert!(told.any(|bearer| bearer.slot.index == index), "nobody is told of {index}");
        }
        map.entries.insert(index, *entry);
        Ok(())
    }

    fn exempt(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        self.0.lock().unwrap().exempt.insert(*key);
        Ok(())
    }

    fn except(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
        Ok(())
    }

    fn unexempt(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        self.0.lock().unwrap().exempt.remove(key);
        Ok(())
    }

    fn prolong(&mut self, until: u64, anew: bool) -> Result<(), dataplane::Error> {
        let mut map = self.0.lock().unwrap();
        if anew || map.lease > now().mono {
            map.lease = map.lease.max(until);
        }
        Ok(())
    }

    fn forget_old(&mut self) {}
}

fn settings() -> EnforcerSettings {
    EnforcerSettings {
        own: NodeName::default(),
        mode: Mode::Enforce,
        auto: Auto::Off,
        answer: crate::plan::Answer::Refuse,
        limit: Share::default(),
        max_view_age: None,
        force: false,
        shares: false,
    }
}

fn claim() -> NewClaim {
    NewClaim {
        source: ClaimSource::Cli,
        by: "".into(),
        reason: "".into(),
        evidence: None,
        lasts: None,
        until: None,
    }
}

fn findings() -> Findings {
    let unknown = || "not looked at".to_owned();
    Findings {
        conntrack: Finding::NotNeeded(unknown()),
        ipvs_translates: Finding::NotNeeded(unknown()),
        deletes_by_filter: Finding::NotNeeded(unknown()),
        milliseconds: 0,
    }
}

/// The thread, and what surrounds it.
struct Rig {
    verdicts: Verdicts,
    map: Shared,
    world: Arc<Published>,
    store: Arc<Slot<StoreWork>>,
    tables: Arc<Slot<TablesWork>>,
    /// Nobody reads these lines unless a test does.
    _lines: Receiver<Line>,
}

impl Rig {
    /// A rig with the nodes of [`NODES`], whose tables are written.
    fn new() -> Self {
        let map = Shared::default();
        let store = Arc::new(Slot::default());
        let (lines, read) = sync_channel(1);
        let verdicts = Verdicts::start(Beginning {
            enforcer: Enforcer::bridge(Vec::new(), Saved::default(), settings(), None, now()),
            writer: Box::new(map.clone()),
            store: Arc::clone(&store),
            lines,
            crew: Crew::default(),
        })
        .unwrap();
        let mut builder = Builder::new(&POLICY, None, Indices::default());
        let view = builder.take(Arc::new(parse(NODES, false).unwrap()), Epoch(0)).unwrap();
        let world = Arc::new(Published::new(World::first(&view, Judgement::default(), findings())));
        map.0.lock().unwrap().world = Some(Arc::clone(&world));
        let tables = Arc::new(Slot::default());
        let outlets =
            Outlets { world: Arc::clone(&world), tables: Arc::clone(&tables), bells: Bells::default() };
        let writer = Box::new(map.clone());
        verdicts.inbox.open(Opened { own: "a".into(), writer, outlets });
        verdicts.inbox.view(view, Some(Vec::new()));
        let rig = Self { verdicts, map, world, store, tables, _lines: read };
        rig.write_tables();
        rig
    }

    fn write_tables(&self) {
        let work = self.tables.take(Duration::from_secs(60), |work| work.plan.is_some());
        let epoch = work.plan.expect("tables").epoch;
        self.verdicts.inbox.tell(Input::Written { epoch, result: Ok(()) });
        self.settle();
    }

    fn settle(&self) {
        self.verdicts.inbox.settled().blocking_recv().unwrap();
    }

    fn ask(&self, node: &str, change: Change) -> oneshot::Receiver<RequestResult> {
        self.verdicts.inbox.ask(Command::Claim(node.into(), change)).unwrap()
    }

    fn flag(&self, node: &str) -> oneshot::Receiver<RequestResult> {
        self.ask(node, Change::Raise { claim: claim(), force: false })
    }

    fn save(&self) {
        let work = self.store.take(Duration::from_secs(60), |work| work.save.is_some());
        let (serial, _) = work.save.expect("something to save");
        self.verdicts.inbox.tell(Input::Saved { serial, result: Ok(()) });
    }

    fn lease(&self) -> u64 {
        self.map.0.lock().unwrap().lease
    }

    fn entry(&self, node: &str) -> NodeEntry {
        let index = self.world.now().slot(node).unwrap().index;
        self.map.0.lock().unwrap().entries[&index]
    }
}

fn wait_until(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_flag_is_answered_once_it_is_in_the_map_and_on_the_disk() {
    let rig = Rig::new();
    let asked = now().mono;
    let mut answer = rig.flag("b");
    rig.settle();
    assert!(answer.try_recv().is_err(), "it does not lie on the disk");
    let entry = rig.entry("b");
    assert_eq!(entry.verdict, 1);
    // Actors that follow the maps may rely on it.
    assert!(rig.world.now().enforces("b"));
    assert!(rig.verdicts.beat.done() >= rig.world.now().held.number);
    rig.save();
    let done = answer.blocking_recv().unwrap().unwrap();
    assert_eq!(done.saved, SaveState::Saved);
    assert!(done.written.is_some_and(|written| asked <= written && written <= now().mono), "{done:?}");
    let answer = rig.ask("b", Change::Withdraw(ClaimSource::Cli));
    rig.save();
    answer.blocking_recv().unwrap().unwrap();
    assert_eq!(rig.entry("b").verdict, 0);
    assert!(!rig.world.now().enforces("b"));
}

/// Claims that waited for the disk while an older save was under way are saved before the end.
#[test]
fn the_end_saves_what_waits() {
    let rig = Rig::new();
    let _late = rig.flag("b");
    rig.settle();
    let work = rig.store.take(Duration::from_secs(60), |work| work.save.is_some());
    let (first, _) = work.save.unwrap();
    let second = rig.ask("c", Change::Raise { claim: claim(), force: true });
    assert_eq!(second.blocking_recv().unwrap().unwrap().saved, SaveState::Late);
    let Rig { verdicts, store, .. } = rig;
    drop(verdicts);
    let (last, saved) = store.take(Duration::ZERO, |_| true).save.expect("the newer state");
    let flagged: Vec<&str> = saved.claims.by_name().into_keys().map(|node| node.as_str()).collect();
    assert!(last > first && flagged == ["b", "c"], "{flagged:?}");
}

/// Another agent has the flags file from the hand-over on: this one saves nothing any more.
#[test]
fn the_end_after_a_hand_over_saves_nothing() {
    let rig = Rig::new();
    let handed = rig.verdicts.inbox.ask(Command::HandOver).unwrap();
    rig.save();
    handed.blocking_recv().unwrap().unwrap();
    rig.verdicts.inbox.tell(Input::Replace {
        source: ClaimSource::File,
        claims: vec![("b".into(), NewClaim { source: ClaimSource::File, ..claim() })],
    });
    let Rig { verdicts, store, .. } = rig;
    drop(verdicts);
    assert!(store.take(Duration::ZERO, |_| true).save.is_none());
}

#[test]
fn what_cannot_be_written_is_refused_with_the_reason() {
    let rig = Rig::new();
    let index = rig.world.now().slot("b").unwrap().index;
    rig.map.0.lock().unwrap().refused = vec![index];
    let refused = rig.flag("b").blocking_recv().unwrap().unwrap_err();
    let Refusal::NotWritten(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("node index"), "{why}");
    rig.settle();
    assert!(!rig.world.now().is_claimed("b"));
}

/// A log that nobody reads and a disk that hangs hold neither flags nor renewals up.
#[test]
fn nothing_holds_it_up() {
    let rig = Rig::new();
    // More lines than fit.
    for _ in 0..3 {
        for flags in [vec![("b".into(), NewClaim { source: ClaimSource::File, ..claim() })], Vec::new()] {
            rig.verdicts.inbox.tell(Input::Replace { source: ClaimSource::File, claims: flags });
            rig.settle();
        }
    }
    let begun = Instant::now();
    let done = rig.flag("c").blocking_recv().unwrap().unwrap();
    assert_eq!(done.saved, SaveState::Late);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let until = rig.entry("c").until;
    let renewed = rig.verdicts.beat.renewed();
    wait_until(|| rig.entry("c").until != until);
    rig.settle();
    assert!(rig.verdicts.beat.renewed() > renewed);
}

/// Where one node cannot be renewed the others are, and that failure is shown.
#[test]
fn what_fails_is_not_said_to_be_renewed() {
    let rig = Rig::new();
    for node in ["b", "c"] {
        let answer = rig.ask(node, Change::Raise { claim: claim(), force: true });
        rig.save();
        answer.blocking_recv().unwrap().unwrap();
    }
    let index = rig.world.now().slot("b").unwrap().index;
    rig.map.0.lock().unwrap().refused = vec![index];
    wait_until(|| !rig.world.now().held.failed.is_empty());
    let until = rig.entry("c").until;
    let renewed = rig.verdicts.beat.renewed();
    let lease = rig.lease();
    wait_until(|| rig.entry("c").until != until);
    rig.settle();
    assert_eq!(rig.verdicts.beat.renewed(), renewed);
    assert!(rig.lease() > lease, "what else is drained from IPVS holds");
    assert!(!rig.world.now().enforces("b") && rig.world.now().enforces("c"));
}

#[test]
fn at_its_end_verdicts_get_their_whole_lifetime() {
    let rig = Rig::new();
    let answer = rig.flag("b");
    rig.save();
    answer.blocking_recv().unwrap().unwrap();
    let index = rig.world.now().slot("b").unwrap().index;
    let Rig { verdicts, map, .. } = rig;
    let ending = now().mono;
    drop(verdicts);
    let until = map.0.lock().unwrap().entries[&index].until;
    assert!(until >= ending + VERDICT_LIFETIME_NS, "{until} {ending}");
}

/// A start that fails a moment later has renewed what an earlier agent left.
#[test]
fn what_was_left_is_renewed_before_anything_else() {
    let map = Shared::default();
    let begun = now();
    map.0.lock().unwrap().lease = begun.mono + 1_000_000_000;
    let entry =
        |name, until| NodeEntry { verdict: 1, action: 0, until, generation: 1, name: name_field(name) };
    let alive = entry("b", begun.mono + 1_000_000_000);
    let pinned = vec![(0, alive), (1, entry("c", begun.mono + 1_000_000_000)), (2, entry("d", begun.mono))];
    let claims = ["b", "d"].map(|node| (node.into(), Claim::raise(claim(), None, begun)));
    let saved = Saved { claims: claims.into(), ..Saved::default() };
    let store = Arc::new(Slot::default());
    let (lines, _read) = sync_channel(1);
    let verdicts = Verdicts::start(Beginning {
        enforcer: Enforcer::bridge(pinned, saved, settings(), None, begun),
        writer: Box::new(map.clone()),
        store: Arc::clone(&store),
        lines,
        crew: Crew::default(),
    });
    drop(verdicts.unwrap());
    let map = map.0.lock().unwrap();
    assert_eq!(
        map.entries.keys().copied().collect::<Vec<_>>(),
        [0],
        "one is not claimed, and one has lapsed"
    );
    assert!(map.entries[&0].until >= begun.mono + VERDICT_LIFETIME_NS);
    // Destinations that the earlier agent drained from IPVS stay drained as long.
    assert!(map.lease >= begun.mono + VERDICT_LIFETIME_NS);
}

/// A save that is under way may lie in a folder that is gone.
#[test]
fn what_is_to_be_saved_anew_is_saved_after_what_is_under_way() {
    let rig = Rig::new();
    let _answer = rig.flag("b");
    rig.settle();
    rig.verdicts.inbox.tell(Input::SaveAnew);
    let mut saved = rig.verdicts.inbox.saved();
    for _ in 0..2 {
        rig.settle();
        assert_eq!(saved.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        rig.save();
    }
    saved.blocking_recv().unwrap();
}

/// The guard is restoring what has lapsed: the lease does not hold again because this process goes on.
#[test]
fn a_lease_that_has_lapsed_is_renewed_only_where_nothing_is_drained() {
    let rig = Rig::new();
    let renewed = |wanted: bool| {
        let begun = rig.verdicts.beat.renewed();
        wait_until(|| rig.verdicts.beat.renewed() > begun);
        rig.settle();
        assert_eq!(rig.lease() > now().mono, wanted);
    };
    renewed(true);
    rig.verdicts.beat.set_drains(true);
    renewed(true);
    rig.map.0.lock().unwrap().lease = 1;
    renewed(false);
    rig.verdicts.beat.set_drains(false);
    renewed(true);
}

#[test]
fn a_panic_ends_the_agent() {
    struct Panics(Arc<AtomicBool>);
    impl Writer for Panics {
        fn write(&mut self, _: u32, _: &NodeEntry) -> Result<(), dataplane::Error> {
            self.0.store(true, Ordering::Relaxed);
            panic!("on purpose");
        }
        fn exempt(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
            Ok(())
        }
        fn except(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
            Ok(())
        }

        fn unexempt(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
            Ok(())
        }
        fn prolong(&mut self, _: u64, _: bool) -> Result<(), dataplane::Error> {
            Ok(())
        }
        fn forget_old(&mut self) {}
    }
    let begun = now();
    let until = begun.mono + 1_000_000_000;
    let pinned = vec![(0, NodeEntry { verdict: 1, action: 0, until, generation: 1, name: name_field("b") })];
    let claims = vec![("b".into(), Claim::raise(claim(), None, begun))];
    let crew = Crew::default();
    let tried = Arc::new(AtomicBool::new(false));
    let (lines, _read) = sync_channel(1);
    let verdicts = Verdicts::start(Beginning {
        enforcer: Enforcer::bridge(pinned, Saved { claims, ..Saved::default() }, settings(), None, begun),
        writer: Box::new(Panics(Arc::clone(&tried))),
        store: Arc::new(Slot::default()),
        lines,
        crew: crew.clone(),
    })
    .unwrap();
    let inbox = Arc::clone(&verdicts.inbox);
    drop(verdicts);
    assert!(tried.load(Ordering::Relaxed));
    assert_eq!(crew.fallen(), Some(Fallen::Panicked("verdicts")));
    drop(inbox);
}
