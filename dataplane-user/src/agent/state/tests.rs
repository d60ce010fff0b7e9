use std::sync::Mutex;

use nodefence_common::NodeEntry;
use proptest::prelude::*;

use super::*;
use crate::{
    cluster::{NodeIx, parse},
    dataplane::{self, probe::Finding},
    plan::{Answer, Mode, keep},
};

const POLICY: Policy<'static> = Policy { own_node: "a", mode: Mode::Enforce, answer: Answer::Refuse };

/// What was written, and what is refused: indices, and kept ports beyond a number.
#[derive(Default)]
struct Map {
    entries: BTreeMap<u32, NodeEntry>,
    kept: BTreeSet<PortKey>,
    refused: Vec<u32>,
    room: Option<usize>,
    /// What was made known.
    world: Option<watch::Receiver<Arc<World>>>,
    /// The view, and for each index its node there.
    view: ClusterView,
    nodes: BTreeMap<u32, NodeIx>,
}

impl Map {
    /// A packet may come between any two writes.
    fn check(&self) {
        let flagged = self.entries.iter().filter(|(_, entry)| entry.verdict != 0);
        let flagged: NodeSet = flagged.map(|(index, _)| self.nodes[index]).collect();
        let needed = keep(&self.view, &KeepIndex::new(&self.view), "a", None, &flagged).keys();
        assert!(needed.is_subset(&self.kept), "{flagged:?} cut, {needed:?} needed, {:?} kept", self.kept);
    }
}

struct Shared(Arc<Mutex<Map>>);

impl Writer for Shared {
    fn write(&mut self, index: u32, entry: &NodeEntry) -> Result<(), dataplane::Error> {
        let mut map = self.0.lock().unwrap();
        if let Some(world) = &map.world {
            // Before a verdict is there, and until it is gone: whoever gets a cut packet finds why.
            let world = world.borrow();
            let known = world.enforced.values().any(|enforced| enforced.slot.index == index);
            assert!(known, "{index} is written as {}", entry.verdict);
        }
        if map.refused.contains(&index) {
            return Err(dataplane::Error::NodeIndex(index));
        }
        map.entries.insert(index, *entry);
        map.check();
        Ok(())
    }

    fn keep(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        let mut map = self.0.lock().unwrap();
        if map.room.is_some_and(|room| map.kept.len() >= room) {
            return Err(dataplane::Error::NotOurs("full".into()));
        }
        map.kept.insert(*key);
        Ok(())
    }

    fn let_go(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        let mut map = self.0.lock().unwrap();
        map.kept.remove(key);
        map.check();
        Ok(())
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

fn state() -> (State, Arc<Mutex<Map>>) {
    state_with("")
}

fn nodes() -> String {
    let node = |n: u8| format!("- {{name: {}, address: 10.0.0.{n}}}\n", char::from(b'`' + n));
    format!("nodes:\n{}", (1..5).map(node).collect::<String>())
}

fn state_with(services: &str) -> (State, Arc<Mutex<Map>>) {
    let view = parse(&format!("{}{services}", nodes()), false).unwrap();
    let mut indices = Indices::default();
    indices.reconcile(view.nodes.iter().map(|node| &node.name)).unwrap();
    let nodes = indices.iter().map(|(name, slot)| (slot.index, view.index(name).unwrap())).collect();
    let map = Arc::new(Mutex::new(Map { view: view.clone(), nodes, ..Map::default() }));
    let writer = Box::new(Shared(Arc::clone(&map)));
    let state =
        State::new(view, Flags::default(), indices, BTreeMap::new(), BTreeSet::new(), writer, findings());
    map.lock().unwrap().world = Some(state.reader());
    (state, map)
}

#[test]
fn a_flag_answers_for_its_own_node_alone() {
    let (mut state, map) = state();
    let index = |state: &State, name| state.indices.get(name).unwrap().index;
    state.flag("b", None, "", &POLICY).unwrap();
    map.lock().unwrap().refused = vec![index(&state, "b")];
    // The other node's renewal fails meanwhile: this one's flag holds, and is said to.
    state.flag("c", None, "", &POLICY).unwrap();
    assert!(state.renew_error().unwrap().starts_with("b: "), "{:?}", state.renew_error());
    // The log is told once.
    state.enforce(&POLICY);
    assert!(state.take_untold().keys().eq(["b"]));
    state.enforce(&POLICY);
    assert!(state.take_untold().is_empty());
    assert_eq!(map.lock().unwrap().entries[&index(&state, "c")].verdict, 1);
    assert!(state.unflag("c", &POLICY).unwrap());
    // What could not be written is not kept, and not left to a later renewal.
    map.lock().unwrap().refused = vec![index(&state, "d")];
    let error = state.flag("d", None, "", &POLICY).unwrap_err();
    assert!(error.contains("node index"), "{error}");
    assert!(state.flags.get("d", Clocks::now()).is_none());
    map.lock().unwrap().refused.clear();
    state.enforce(&POLICY);
    assert!(!map.lock().unwrap().entries.contains_key(&index(&state, "d")));
    assert_eq!(state.renew_error(), None);
    // An older flag on the same node stays as it was.
    state.flag("b", None, "older", &POLICY).unwrap();
    map.lock().unwrap().refused = vec![index(&state, "b")];
    state.flag("b", None, "newer", &POLICY).unwrap_err();
    assert_eq!(state.flags.get("b", Clocks::now()).unwrap().reason, "older");
}

/// What is done about the others goes on, as long as their verdicts hold.
#[test]
fn a_node_that_cannot_be_renewed_leaves_the_others_held() {
    let (mut state, map) = state();
    state.flag("b", None, "", &POLICY).unwrap();
    state.flag("c", None, "", &POLICY).unwrap();
    let (renewed, since) = (state.renewed, state.ask_since.clone());
    assert!(since.keys().eq(["b", "c"]) && since["b"] < since["c"], "{since:?}");
    map.lock().unwrap().refused = vec![state.indices.get("b").unwrap().index];
    for _ in 0..3 {
        let held = state.held;
        state.enforce(&POLICY);
        assert!(state.held > held, "the deadline moves on");
    }
    assert_eq!(state.renewed, renewed, "not all are renewed");
    assert!(state.armed.keys().eq(["c"]), "what is cut no more is put back");
    assert_eq!(state.ask_since, BTreeMap::from([(NodeName::from("c"), since["c"])]));
    // It can be written again: armed anew, and its clients are asked anew.
    map.lock().unwrap().refused.clear();
    state.fresh.clear();
    state.enforce(&POLICY);
    assert!(state.ask_since["b"] > since["b"] && state.fresh.contains("b"));
    assert_eq!(state.ask_since["c"], since["c"]);
    assert!(state.renewed > renewed);
    state.unflag("b", &POLICY).unwrap();
    assert!(state.ask_since.keys().eq(["c"]));
}

/// One Service with endpoints on each of these nodes.
fn service(n: usize, on: &str) -> String {
    let endpoints: Vec<String> = on
        .bytes()
        .map(|node| format!("{{address: 10.1.{n}.{}, node: {}}}", node - b'`', char::from(node)))
        .collect();
    format!(
        "- {{name: x/s{n}, clusterIPs: [10.96.0.{n}], ports: [{{port: 80}}], endpoints: [{}]}}\n",
        endpoints.join(", ")
    )
}

fn services(all: &[&str]) -> String {
    let list: String = (1..).zip(all).map(|(n, on)| service(n, on)).collect();
    if list.is_empty() { "services: []\n".to_owned() } else { format!("services:\n{list}") }
}

#[test]
fn what_is_kept_follows_the_view() {
    let (mut state, map) = state_with(&services(&["b"]));
    state.flag("b", None, "", &POLICY).unwrap();
    assert_eq!(map.lock().unwrap().kept.len(), 2, "a port and its address");
    state.fresh.clear();
    // Another endpoint: the first one is cut from now on, and its clients are asked.
    let view = |text: &str| parse(&format!("{}{text}", nodes()), false).unwrap();
    let take = |state: &mut State, text: &str| {
        let view = view(text);
        map.lock().unwrap().view = view.clone();
        let indices = Indices::clone(&state.indices);
        state.set_view(Arc::new(view.clone()), KeepIndex::new(&view), indices);
        state.enforce(&POLICY);
    };
    let since = state.ask_since["b"];
    take(&mut state, &services(&["bc"]));
    assert!(map.lock().unwrap().kept.is_empty());
    assert!(state.fresh.contains("b") && state.ask_since["b"] > since, "an earlier round does not count");
    // It is gone again.
    take(&mut state, &services(&["b"]));
    assert_eq!(map.lock().unwrap().kept.len(), 2);
    take(&mut state, "");
    assert!(map.lock().unwrap().kept.is_empty());
    assert!(state.unflag("b", &POLICY).unwrap());
}

/// A round that began before they were there, or before the maps held them, did not ask for them.
#[test]
fn clients_of_new_backends_are_asked_by_another_round() {
    let (mut state, _) = state();
    for node in ["b", "c"] {
        state.flag(node, None, "", &POLICY).unwrap();
    }
    state.fresh.clear();
    let at_first = state.ask_since.clone();
    let view = parse(&format!("{}{}", nodes(), services(&["b"])), false).unwrap();
    let indices = Indices::clone(&state.indices);
    state.set_view(Arc::new(view.clone()), KeepIndex::new(&view), indices);
    let told = state.ask_since.clone();
    assert!(told["b"] > at_first["b"] && !state.fresh.contains("b"), "the maps do not hold them");
    state.written();
    assert!(state.ask_since["b"] > told["b"] && state.fresh.contains("b"));
    assert_eq!(state.ask_since["c"], at_first["c"], "nothing came to this one");
}

#[test]
fn nobody_is_flagged_whose_kept_ports_do_not_fit() {
    let (mut state, map) = state_with(&services(&["b", "bc"]));
    let flagged = |map: &Mutex<Map>| map.lock().unwrap().entries.values().filter(|e| e.verdict != 0).count();
    map.lock().unwrap().room = Some(1);
    let error = state.flag("b", None, "", &POLICY).unwrap_err();
    assert!(error.starts_with("10.1.1.2:80/tcp must be kept"), "{error}");
    assert_eq!(flagged(&map), 0);
    assert!(state.flags.get("b", Clocks::now()).is_none());
    assert_eq!(map.lock().unwrap().kept.len(), 0, "what was written of it is taken back");
    // One fits; a second flag that needs more is refused and leaves the first alone.
    map.lock().unwrap().room = Some(3);
    state.flag("b", None, "", &POLICY).unwrap();
    state.flag("c", None, "", &POLICY).unwrap_err();
    assert_eq!((flagged(&map), map.lock().unwrap().kept.len()), (1, 2));
    assert!(state.renew_error().is_none());
    map.lock().unwrap().room = None;
    state.flag("c", None, "", &POLICY).unwrap();
    assert_eq!((flagged(&map), map.lock().unwrap().kept.len()), (2, 6));
}

proptest! {
    /// Whatever comes and goes in whatever order: at no moment is anything cut that must be kept, and what is kept in the end
    /// depends on the flags alone.
    #[test]
    fn the_order_of_flags_does_not_matter(
        all in prop::collection::vec(prop::sample::select(&["b", "c", "bc", "cd", "bd", "bcd", "abcd"][..]), 0..5),
        steps in prop::collection::vec((prop::sample::select(&["b", "c", "d"][..]), any::<bool>()), 1..12),
    ) {
        let (mut state, map) = state_with(&services(&all));
        let mut flagged = BTreeSet::new();
        for (node, flag) in steps {
            if flag {
                state.flag(node, None, "", &POLICY).unwrap();
                flagged.insert(state.view.index(node).unwrap());
            } else {
                state.unflag(node, &POLICY).unwrap();
                flagged.remove(&state.view.index(node).unwrap());
            }
            let bearers = flagged.iter().copied().collect();
            let needed = keep(&state.view, &KeepIndex::new(&state.view), "a", None, &bearers).keys();
            prop_assert_eq!(&map.lock().unwrap().kept, &needed);
        }
    }
}
