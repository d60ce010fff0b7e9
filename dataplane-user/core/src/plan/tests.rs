use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, VERDICT_LIFETIME_NS, Verdict, backend_flags};
use proptest::prelude::*;

use super::*;
use crate::cluster::{Backend, ClusterView, Node, NodeName, Protocol, Scope};

const OBSERVE: Policy<'static> = Policy { own_node: "n0", mode: Mode::Observe, answer: Answer::Refuse };
const REFUSE: Policy<'static> = Policy { own_node: "n0", mode: Mode::Enforce, answer: Answer::Refuse };
const DROP: Policy<'static> = Policy { own_node: "n0", mode: Mode::Enforce, answer: Answer::Drop };

fn view(nodes: &[u8]) -> ClusterView {
    let mut nodes: Vec<Node> = nodes
        .iter()
        .map(|&n| {
            let own = IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
            let pod = |b| Backend { address: Ipv4Addr::new(10, 1, n, b).into(), scope: Scope::Address };
            let host = Backend { address: own, scope: Scope::Port(9100, Protocol::Tcp) };
            let name = format!("n{n}").into();
            let backends = vec![pod(1), pod(2), host];
            Node {
                name,
                uid: None,
                addresses: vec![own],
                zone: None,
                pool: None,
                backends,
                left_out: Vec::new(),
            }
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes.dedup();
    ClusterView { nodes: nodes.into_iter().map(Arc::new).collect(), services: None, ..ClusterView::default() }
}

fn names(view: &ClusterView) -> impl Iterator<Item = &NodeName> {
    view.nodes.iter().map(|node| &node.name)
}

#[test]
fn the_action_follows_the_policy() {
    let slot = Slot { index: 3, generation: 4 };
    for (policy, action) in [(REFUSE, Action::Refuse), (DROP, Action::Drop), (OBSERVE, Action::Observe)] {
        // The own node has a place as any other.
        for name in ["n0", "n1"] {
            let entry = node_entry(name, slot, &policy, Some(77));
            assert_eq!((entry.verdict, entry.action), (Verdict::Flagged as u32, action as u32));
            assert_eq!((entry.until, entry.generation, entry.name), (77, 4, name_field(name)));
        }
        let healthy = node_entry("n2", slot, &policy, None);
        assert_eq!((healthy.verdict, healthy.until), (Verdict::Healthy as u32, 0));
    }
}

#[test]
fn the_own_node_s_backends_are_marked() {
    let view = view(&[0, 1, 2]);
    let mut indices = Indices::default();
    indices.reconcile(names(&view), 1, 1).unwrap();
    for policy in [REFUSE, DROP, OBSERVE] {
        let tables = backend_tables(&view, |name| indices.get(name), &policy).flat();
        let own = |node: &Arc<Node>| {
            node.backends.iter().all(|b| tables.backends[&b.addr()].flags & backend_flags::OWN != 0)
        };
        assert_eq!(view.nodes.iter().map(own).collect::<Vec<_>>(), [true, false, false]);
    }
}

#[test]
fn a_node_without_a_place_gets_nothing() {
    let view = view(&[0, 1]);
    let mut indices = Indices::default();
    indices.reconcile([&NodeName::from("n1")], 1, 1).unwrap();
    let tables = backend_tables(&view, |name| indices.get(name), &REFUSE).flat();
    let of_n1: HashSet<Addr> = view.nodes[1].backends.iter().map(Backend::addr).collect();
    assert_eq!(tables.backends.into_keys().collect::<HashSet<_>>(), of_n1);
    assert_eq!(tables.ports.len(), 1);
}

#[test]
fn a_verdict_does_not_outlive_its_flag() {
    assert_eq!(verdict_until(5, None), 5 + VERDICT_LIFETIME_NS);
    assert_eq!(verdict_until(5, Some(Duration::from_secs(60))), 5 + VERDICT_LIFETIME_NS);
    assert_eq!(verdict_until(5, Some(Duration::from_millis(1))), 1_000_005);
    assert_eq!(verdict_until(5, Some(Duration::ZERO)), 5);
}

#[test]
fn host_network_backends_are_port_scoped() {
    let view = view(&[1]);
    let mut indices = Indices::default();
    indices.reconcile(names(&view), 1, 1).unwrap();
    let tables = backend_tables(&view, |name| indices.get(name), &REFUSE).flat();
    let host = view.nodes[0].backends[2];
    assert_eq!(tables.backends[&host.addr()].flags, backend_flags::PORT_SCOPED);
    assert_eq!(tables.ports.len(), 1);
    assert!(tables.ports.contains_key(&host.port_key().unwrap()));
    assert_eq!(tables.backends[&view.nodes[0].backends[0].addr()].flags, 0);
}

#[test]
fn long_names_stay_apart() {
    let a = name_field("gke-production-default-pool-0a1b2c3d-x7k2");
    let b = name_field("gke-production-default-pool-0a1b2c3d-x7k3");
    let c = name_field("ip-10-2-0-12.eu-central-1.compute.internal");
    let d = name_field("ip-10-2-0-13.eu-central-1.compute.internal");
    assert!(a != b && c != d);
    assert!(a.starts_with(b"gke-prod~") && a.ends_with(b"1b2c3d-x7k2".split_at(1).1));
    assert_eq!(&name_field("node-b")[..7], b"node-b\0");
    assert_eq!(name_field(&"x".repeat(28)), [b'x'; 28]);
}

#[test]
fn doubtful_names_are_not_adopted() {
    let entry =
        |generation, name| NodeEntry { verdict: 1, action: 0, until: 9, generation, name: name_field(name) };
    let mut indices = Indices::adopt(&[(3, entry(2, "a")), (4, entry(1, "a")), (5, entry(6, "b"))], []);
    indices.reconcile(&["a", "b"].map(NodeName::from), 1, 1).unwrap();
    assert_eq!(indices.get("b"), Some(Slot { index: 5, generation: 6 }));
    assert_eq!(indices.get("a"), Some(Slot { index: 6, generation: 1 }));
}

#[test]
fn a_later_generation_of_a_backend_counts() {
    let entry = NodeEntry { verdict: 0, action: 0, until: 0, generation: 2, name: name_field("a") };
    let backend = BackendEntry { node: 3, generation: 5, flags: 0 };
    let mut indices = Indices::adopt(&[(3, entry)], [backend]);
    indices.reconcile([&NodeName::from("a")], 1, 1).unwrap();
    let slot = indices.get("a").unwrap();
    assert!(slot.index != 3 || slot.generation > 5, "{slot:?}");
}

#[test]
fn every_place_can_be_used() {
    let all: Vec<NodeName> = (0..nodefence_common::MAX_NODES).map(|n| format!("n{n}").into()).collect();
    let more = NodeName::from("one-more");
    let mut indices = Indices::default();
    indices.reconcile(&all, 1, 0).unwrap();
    assert_eq!(indices.iter().map(|(_, slot)| slot.index).collect::<HashSet<_>>().len(), all.len());
    let before = indices.get("n7").unwrap();
    assert_eq!(indices.reconcile(all.iter().chain([&more]), 2, 1), Err(Full(all.len() + 1)));
    assert_eq!(indices.get("n7"), Some(before));
    // A node leaves as another comes: the first one's backends lie in the maps until this view's tables are written.
    let others = || all.iter().filter(|name| *name != "n7").chain([&more]);
    for (view, written) in [(2, 1), (3, 1)] {
        assert_eq!(indices.reconcile(others(), view, written), Ok(1));
        assert_eq!((indices.get("n7"), indices.get("one-more")), (None, None));
    }
    assert_eq!(indices.reconcile(others(), 4, 2), Ok(0));
    let after = indices.get("one-more").unwrap();
    assert_eq!(after, Slot { index: before.index, generation: before.generation + 1 });
}

/// What an agent leaves in the maps.
#[derive(Default)]
struct Pinned {
    backends: HashMap<Addr, BackendEntry>,
    nodes: BTreeMap<u32, NodeEntry>,
}

impl Pinned {
    fn new(view: &ClusterView, indices: &Indices) -> Self {
        let entry = |(name, slot): (&NodeName, Slot)| (slot.index, node_entry(name, slot, &REFUSE, None));
        Self {
            backends: backend_tables(view, |name| indices.get(name), &REFUSE).flat().backends,
            nodes: indices.iter().map(entry).collect(),
        }
    }

    /// Whether neither map says anything of this place any more, so that a restarted agent cannot know of it.
    fn lost(&self, slot: Slot) -> bool {
        !self.nodes.contains_key(&slot.index) && !self.backends.values().any(|entry| entry.node == slot.index)
    }
}

proptest! {
    /// Whatever comes and goes, restarts of the agent included: a place under one generation has one owner for ever,
    /// a node that stays keeps its place, and every backend leads to its own node.
    #[test]
    fn a_slot_has_one_owner(
        steps in prop::collection::vec((prop::collection::vec(0u8..12, 0..10), any::<bool>()), 1..25)
    ) {
        let mut indices = Indices::default();
        let mut owners: HashMap<Slot, NodeName> = HashMap::new();
        let mut pinned = Pinned::default();
        for (nodes, restart) in steps {
            let view = view(&nodes);
            if restart {
                let nodes: Vec<_> = pinned.nodes.iter().map(|(&index, &entry)| (index, entry)).collect();
                indices = Indices::adopt(&nodes, pinned.backends.values().copied());
            }
            let before: HashMap<NodeName, Slot> = indices.iter().map(|(n, s)| (n.clone(), s)).collect();
            indices.reconcile(names(&view), 1, 1).unwrap();
            for (name, slot) in indices.iter() {
                prop_assert!(slot.generation != 0);
                // A new agent knows only what lay in the maps while none ran.
                let owner = owners.entry(slot).or_insert_with(|| name.clone());
                prop_assert!(owner == name || pinned.lost(slot), "{slot:?}: {owner} and {name}");
                *owner = name.clone();
                if let Some(before) = before.get(name) {
                    prop_assert_eq!(*before, slot);
                }
            }
            if restart {
                for (&index, entry) in &pinned.nodes {
                    for node in view.nodes.iter().filter(|node| name_field(&node.name) == entry.name) {
                        let slot = Slot { index, generation: entry.generation };
                        prop_assert_eq!(indices.get(&node.name), Some(slot), "moved by a restart");
                    }
                }
            }
            pinned = Pinned::new(&view, &indices);
            for node in &view.nodes {
                for backend in &node.backends {
                    let entry = pinned.backends[&backend.addr()];
                    let place = pinned.nodes[&entry.node];
                    prop_assert_eq!(place.generation, entry.generation);
                    prop_assert_eq!(place.name, name_field(&node.name));
                }
            }
            prop_assert_eq!(pinned.nodes.len(), view.nodes.len());
        }
    }

    /// The order of nodes in the source changes nothing.
    #[test]
    fn order_means_nothing(nodes in prop::collection::vec(0u8..40, 0..30)) {
        let mut shuffled: Vec<NodeName> = nodes.iter().map(|n| format!("n{n}").into()).collect();
        let mut a = Indices::default();
        a.reconcile(&shuffled, 1, 1).unwrap();
        shuffled.reverse();
        let mut b = Indices::default();
        b.reconcile(&shuffled, 1, 1).unwrap();
        prop_assert_eq!(a.iter().collect::<Vec<_>>(), b.iter().collect::<Vec<_>>());
        let view = view(&nodes);
        let tables = |indices: &Indices| backend_tables(&view, |name| indices.get(name), &REFUSE).flat();
        prop_assert_eq!(tables(&a), tables(&b));
    }
}
