//! Compares what is read in the maps with what the snapshot says.

use std::sync::Arc;

use nodefence_common::{Action, NodeEntry, PortKey, Verdict, port_flags};

use super::{
    rig::{Fate, Rig, SECOND, settings},
    texts::text,
};
use crate::enforce::{Differing, Output, World};

const FLAGGED: u32 = Verdict::Flagged as u32;

/// Node b is flagged, and its port is exempt: a Service has nothing else.
fn rig() -> Rig {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    rig
}

/// The maps as the writer of tables reads them.
fn read(rig: &Rig) -> (Vec<NodeEntry>, Vec<(PortKey, u32)>) {
    let empty = NodeEntry { verdict: 0, action: 0, until: 0, generation: 0, name: [0; 28] };
    let entry = |index| rig.maps.nodes.get(&index).copied().unwrap_or(empty);
    let exempt = rig.maps.exempt.iter().map(|(key, flags)| (*key, *flags));
    ((0..16).map(entry).collect(), exempt.collect())
}

fn world(rig: &Rig) -> Arc<World> {
    Arc::clone(rig.world.as_ref().unwrap())
}

/// What differs after a change. Places are named by their node.
fn differing(change: impl FnOnce(&Rig, &mut Vec<NodeEntry>, &mut Vec<(PortKey, u32)>)) -> Differing {
    let rig = rig();
    let (mut nodes, mut exempt) = read(&rig);
    change(&rig, &mut nodes, &mut exempt);
    world(&rig).differing(&nodes, &exempt, rig.now.mono)
}

fn place(rig: &Rig, node: &str) -> usize {
    rig.slots.get(node).unwrap().index as usize
}

#[test]
fn nothing_differs_where_all_is_as_it_was_written() {
    assert_eq!(differing(|_, _, _| ()), Differing::default());
    // Nor where a verdict was renewed, or a place bears what its former owner left.
    let renewed = differing(|rig, nodes, _| {
        nodes[place(rig, "b")].until += SECOND;
        nodes[15] = NodeEntry { verdict: 0, generation: 7, name: [7; 28], ..nodes[15] };
    });
    assert_eq!(renewed, Differing::default());
    // Before there is a view nothing is known.
    let (nodes, exempt) = read(&rig());
    assert_eq!(World::default().differing(&nodes, &exempt, 0), Differing::default());
}

#[test]
fn each_entry_of_a_node_that_is_not_as_it_was_written_is_found() {
    type Change = fn(&mut NodeEntry);
    let changes: [(&str, Change); 6] = [
        ("b", |entry| entry.until = 1),
        ("b", |entry| entry.verdict = 0),
        ("b", |entry| entry.action = Action::Drop as u32),
        ("c", |entry| *entry = NodeEntry { verdict: FLAGGED, until: u64::MAX, ..*entry }),
        ("c", |entry| entry.generation += 1),
        ("c", |entry| entry.name = [1; 28]),
    ];
    for (at, (node, change)) in changes.into_iter().enumerate() {
        let found = differing(|rig, nodes, _| change(&mut nodes[place(rig, node)]));
        let place = place(&rig(), node) as u32;
        assert_eq!(
            (found.nodes.into_iter().collect::<Vec<_>>(), found.ports.len()),
            (vec![place], 0),
            "{at}"
        );
    }
    // A place without an owner.
    let foreign = differing(|_, nodes, _| {
        nodes[15] = NodeEntry { verdict: FLAGGED, until: u64::MAX, generation: 3, ..nodes[15] };
    });
    assert_eq!((foreign.nodes.contains(&15), foreign.len()), (true, 1));
}

#[test]
fn each_exempted_port_that_is_not_as_it_was_written_is_found() {
    let key = PortKey::exempt(std::net::IpAddr::from([10, 9, 9, 9]).into(), 1, 6);
    assert_eq!(differing(|_, _, exempt| exempt.truncate(1)).len(), 1);
    assert_eq!(differing(|_, _, exempt| exempt.push((key, port_flags::EXEMPT))).ports.first(), Some(&key));
    assert_eq!(differing(|_, _, exempt| exempt[0].1 = 0).len(), 1);
}

/// A port that is cut at an exempt address may find no room: that is known, and not reported as a difference.
#[test]
fn a_port_that_is_cut_at_an_address_that_passes_may_be_missing() {
    let second = "- {name: x/s2, clusterIPs: [10.96.0.2], ports: [{port: 90, targetPort: 81}], endpoints: [{address: 10.1.1.2, node: b}, {address: 10.1.2.3, node: c}]}\n";
    let mut rig = Rig::with(&(text("abcdef", &["b"]) + second), settings());
    rig.flag("b").unwrap();
    let (nodes, exempt) = read(&rig);
    let found = |exempt: &[(PortKey, u32)]| world(&rig).differing(&nodes, exempt, rig.now.mono).ports;
    let at = exempt.iter().position(|(_, flags)| *flags == port_flags::CUT).unwrap();
    let (mut missing, mut passes) = (exempt.clone(), exempt.clone());
    let (key, _) = missing.remove(at);
    passes[at].1 = port_flags::EXEMPT;
    assert!(found(&exempt).is_empty() && found(&missing).is_empty());
    assert_eq!(found(&passes).into_iter().collect::<Vec<_>>(), [key]);
}

/// A verdict is told before it is written.
#[test]
fn what_was_on_its_way_differs_once() {
    let before = read(&rig());
    let mut rig = rig();
    rig.flag("c").unwrap();
    let (nodes, exempt) = before;
    let first = world(&rig).differing(&nodes, &exempt, rig.now.mono);
    assert_eq!(first.nodes.len(), 1);
    let (nodes, exempt) = read(&rig);
    let second = world(&rig).differing(&nodes, &exempt, rig.now.mono);
    assert!(first.both(&second).is_empty() && !first.both(&first).is_empty());
}

/// Entries that the owner of verdicts could not write it tries again by itself.
#[test]
fn what_is_known_to_have_failed_is_left_out() {
    let mut rig = rig();
    let index = rig.slots.get("b").unwrap().index;
    rig.fates = Box::new(move |output| match output {
        Output::Node(at, _) if *at == index => Fate::Failed,
        _ => Fate::Done,
    });
    rig.pass(SECOND);
    let (mut nodes, exempt) = read(&rig);
    nodes[index as usize].until = 0;
    assert_eq!(world(&rig).differing(&nodes, &exempt, rig.now.mono), Differing::default());
}
