use std::collections::{BTreeSet, HashMap};

use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey, Verdict, port_flags};

use super::{texts, view};
use crate::{
    cluster::{ClusterView, NodeName},
    plan::{
        Answer, Indices, Mode, Policy, Slot,
        audit::{Found, Kind, Maps, Mend},
        backend_tables, node_entry,
    },
};

const NOW: u64 = 1_000;
const UNTIL: u64 = 2_000;

fn cluster() -> (ClusterView, Indices) {
    let view = view(
        "services:
  - name: default/web
    clusterIPs: [10.96.0.1]
    ports: [{ port: 80 }]
    endpoints: [{ address: 10.1.2.1, node: b }, { address: 10.1.3.1, node: c }]
",
    );
    let mut indices = Indices::adopt(&[], []);
    indices.reconcile(view.nodes.iter().map(|node| &node.name)).unwrap();
    (view, indices)
}

fn policy() -> Policy<'static> {
    Policy { own_node: "a", mode: Mode::Enforce, answer: Answer::Refuse }
}

/// What lies in the maps.
struct There {
    backends: HashMap<Addr, BackendEntry>,
    ports: HashMap<PortKey, u32>,
    nodes: Vec<(u32, NodeEntry)>,
}

fn kept() -> BTreeSet<PortKey> {
    let addr = std::net::IpAddr::from([10, 1, 2, 1]).into();
    BTreeSet::from([PortKey::kept(addr, 80, 6), PortKey::kept_address(addr)])
}

/// As the agent writes them.
fn written() -> There {
    let (view, indices) = cluster();
    let tables = backend_tables(&view, |name| indices.get(name), &policy());
    let mut ports = tables.ports;
    ports.extend(kept().into_iter().map(|key| (key, port_flags::KEEP)));
    let entry = |(name, slot): (&NodeName, Slot)| {
        let until = (*name == "b").then_some(UNTIL);
        (slot.index, node_entry(name, slot, &policy(), until))
    };
    There { backends: tables.backends, ports, nodes: indices.iter().map(entry).collect() }
}

fn judged(change: impl FnOnce(&mut There)) -> Vec<String> {
    let mut there = written();
    change(&mut there);
    let (view, indices) = cluster();
    let verdict = |name: &str| (name == "b").then_some(Mode::Enforce);
    let mut maps = Maps::new(&view, |name| indices.get(name), &policy(), verdict, &kept(), NOW);
    let mut out = Found::default();
    there.backends.into_iter().for_each(|(addr, entry)| maps.backend(addr, entry, &mut out));
    there.ports.into_iter().for_each(|(key, flags)| maps.port(key, flags, &mut out));
    there.nodes.iter().for_each(|(index, entry)| maps.node(*index, entry, &mut out));
    maps.finish(&mut out);
    assert!(out.differences.iter().all(|d| d.kind == Kind::MapEntry && d.mend == Some(Mend::Write)));
    let mut all = texts(&out);
    all.iter_mut().zip(&out.differences).for_each(|(text, d)| *text += &format!(": {}", d.detail));
    all
}

#[test]
fn each_difference_is_found_and_what_was_written_has_none() {
    let addr = |last| std::net::IpAddr::from([10, 1, last, 1]).into();
    let host = PortKey::endpoint(std::net::IpAddr::from([10, 0, 0, 3]).into(), 9100, 6);
    assert_eq!(judged(|_| {}), [""; 0]);
    type Change = Box<dyn FnOnce(&mut There)>;
    let cases: Vec<(Change, &str)> = vec![
        (
            Box::new(move |maps| {
                let _ = maps.backends.remove(&addr(2));
            }),
            "map-entry backend 10.1.2.1: missing: node index 1 (generation 1), flags 0",
        ),
        (
            Box::new(move |maps| {
                let _ = maps.backends.insert(addr(9), maps.backends[&addr(2)]);
            }),
            "map-entry backend 10.1.9.1: not planned",
        ),
        (
            Box::new(move |maps| maps.backends.get_mut(&addr(2)).unwrap().node = 2),
            "map-entry backend 10.1.2.1: node index 2 (generation 1), flags 0 instead of node index 1 (generation 1), flags 0",
        ),
        (
            Box::new(move |maps| {
                let _ = maps.ports.remove(&host);
            }),
            "map-entry port 10.0.0.3:9100 (protocol 6): missing: flags 1",
        ),
        (
            Box::new(move |maps| {
                let _ = maps.ports.remove(&PortKey::kept(addr(2), 80, 6));
            }),
            "map-entry kept 10.1.2.1:80 (protocol 6): missing: flags 2",
        ),
        (
            Box::new(move |maps| {
                let _ = maps.ports.insert(PortKey::kept(addr(3), 80, 6), port_flags::KEEP);
            }),
            "map-entry kept 10.1.3.1:80 (protocol 6): not planned",
        ),
        (
            Box::new(|maps| maps.nodes[1].1.until = NOW),
            "map-entry node index 1: bears no verdict that holds, though it is flagged",
        ),
        (Box::new(|maps| maps.nodes[1].1.action = 2), "map-entry node index 1: action 2 instead of 0"),
        (
            Box::new(|maps| {
                let flagged = maps.nodes[1].1;
                maps.nodes[2].1 = NodeEntry { name: maps.nodes[2].1.name, ..flagged };
            }),
            "map-entry node index 2: bears a verdict, though it is not flagged",
        ),
        (
            Box::new(|maps| maps.nodes[0].1.generation = 9),
            "map-entry node index 0: generation 9 instead of 1",
        ),
        (
            Box::new(|maps| {
                let _ = maps.nodes.remove(0);
            }),
            "map-entry node index 0: missing",
        ),
        (
            Box::new(|maps| maps.nodes.push((7, maps.nodes[1].1))),
            "map-entry node index 7: bears a verdict, and is nobody's",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(judged(change), [expected]);
    }
    // What is over says nothing, and an index without an owner keeps its generation.
    let lapsed = judged(|maps| {
        let flagged = maps.nodes[1].1;
        maps.nodes.push((7, NodeEntry { until: NOW, ..flagged }));
        maps.nodes.push((8, NodeEntry { verdict: Verdict::Healthy as u32, ..flagged }));
    });
    assert_eq!(lapsed, [""; 0]);
}
