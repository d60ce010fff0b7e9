//! The writer of entries of nodes and of exempt ports: which maps it writes.
use std::{fs, path::Path};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use nodefence::dataplane::{self, Dataplane, NodeWriter, Options};
use nodefence_common::{Addr, BackendEntry, MAX_NODES, NodeEntry, PortKey, Reason, Verdict, port_flags};

use super::support::{Held, PEERS, Pair, arrives, node, pin_dir, up0, wanted};

type Nodes = Array<MapData, NodeEntry>;
type Ports = HashMap<MapData, PortKey, u32>;
type Backends = HashMap<MapData, Addr, BackendEntry>;

fn open<T: TryFrom<Map, Error = MapError>>(folder: &Path, name: &str) -> T {
    MapData::from_pin(folder.join(name)).and_then(Map::from_map_data).and_then(T::try_from).unwrap()
}

/// Replaces the pinned `nodes` by a map with this number of zeros, as if another agent had left it.
fn replace_nodes<V: aya::Pod>(entries: u32) {
    let pin = pin_dir().join("nodes");
    fs::remove_file(&pin).unwrap();
    Array::<MapData, V>::create(entries, 0).unwrap().pin(pin).unwrap();
}

#[test]
fn one_write_flips_a_node() {
    let pair = Pair::new("flip");
    let mut held = Held::open(&pair, Options::default());
    let mut writer = held.with(|dataplane| {
        dataplane.devices.attach(&up0()).unwrap();
        wanted(&[(node("a", 1, false), &PEERS[..1])]).write(dataplane).unwrap();
        NodeWriter::new(&dataplane.devices).unwrap()
    });
    assert!(arrives(&pair, PEERS[0]));
    writer.write_node(0, &node("a", 1, true)).unwrap();
    assert!(!arrives(&pair, PEERS[0]));
    let counters = held.with(|dataplane| dataplane.counters.read().unwrap());
    let dropped = counters.iter().find(|(reason, _)| *reason == Reason::Dropped).unwrap().1.packets;
    assert!(dropped >= 20, "{dropped}");
    writer.write_node(0, &node("a", 1, false)).unwrap();
    assert!(arrives(&pair, PEERS[0]));
}

#[test]
fn a_node_that_left_keeps_its_generation() {
    Pair::new("left").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        wanted(&[(node("a", 7, true), &PEERS[..1])]).write(&mut dataplane).unwrap();
        wanted(&[]).write(&mut dataplane).unwrap();
        let left = dataplane.tables.owned().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].0, left[0].1.generation, left[0].1.verdict), (0, 7, Verdict::Healthy as u32));
        assert_eq!(NodeWriter::pinned(&pin_dir()).unwrap().1, left);
        assert_eq!(dataplane.tables.backends().unwrap(), []);
    });
}

#[test]
fn an_index_that_does_not_fit_is_refused() {
    Pair::new("index").near.run(|| {
        let dataplane = Dataplane::open(&Options::default()).unwrap();
        let mut writer = NodeWriter::new(&dataplane.devices).unwrap();
        writer.write_node(MAX_NODES - 1, &node("last", 1, false)).unwrap();
        let refused = writer.write_node(MAX_NODES, &node("far", 1, false)).unwrap_err().to_string();
        assert!(refused.contains("16384"), "{refused}");
        let there: Vec<u32> = dataplane.tables.owned().unwrap().into_iter().map(|(index, _)| index).collect();
        assert_eq!(there, [MAX_NODES - 1]);
    });
}

/// The programs of a device read the old maps until the device is switched, so both are written until then.
#[test]
fn old_and_new_maps_are_written_until_the_devices_are_switched() {
    Pair::new("both").near.run(|| {
        drop(Dataplane::open(&Options::default()).unwrap());
        replace_nodes::<NodeEntry>(1_000);
        let pin = pin_dir().join("ports");
        fs::remove_file(&pin).unwrap();
        Ports::create(1_000, 1).unwrap().pin(pin).unwrap();

        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        assert!(dataplane.devices.is_staged());
        let staging = pin_dir().join("staging");
        let nodes: [Nodes; 2] = [&pin_dir(), &staging].map(|folder| open(folder, "nodes"));
        let ports: [Ports; 2] = [&pin_dir(), &staging].map(|folder| open(folder, "ports"));
        let entries = |index: u32| nodes.each_ref().map(|nodes| nodes.get(&index, 0).unwrap());
        let has = |key: &PortKey| ports.each_ref().map(|ports| ports.get(key, 0).ok());
        let mut writer = NodeWriter::new(&dataplane.devices).unwrap();
        let hung = node("hung", 1, true);
        let healthy = node("hung", 1, false);
        let addr = Addr::v4(PEERS[1].octets());
        let exempt = PortKey::exempt(addr, 80, 6);
        let cut = PortKey::exempt(addr, 81, 6);
        writer.write_node(1, &hung).unwrap();
        writer.exempt_port(&exempt).unwrap();
        writer.exempt_port(&cut).unwrap();
        assert_eq!(entries(1), [hung; 2]);
        assert_eq!(has(&cut), [Some(port_flags::EXEMPT); 2]);
        writer.cut_port(&cut).unwrap();
        assert_eq!(has(&cut), [Some(port_flags::CUT); 2]);
        writer.unexempt_port(&cut).unwrap();
        assert_eq!((has(&exempt), has(&cut)), ([Some(port_flags::EXEMPT); 2], [None; 2]));
        // The old map has no such index, and no backend in the old map has that node.
        writer.write_node(1_000, &hung).unwrap();
        assert_eq!(nodes[1].get(&1_000, 0).unwrap(), hung);

        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
        assert!(!dataplane.devices.is_staged());
        writer.forget_old();
        writer.write_node(1, &healthy).unwrap();
        writer.unexempt_port(&exempt).unwrap();
        assert_eq!(entries(1), [hung, healthy]);
        assert_eq!(has(&exempt), [Some(port_flags::EXEMPT), None]);
    });
}

/// Attaches programs to up0 whose maps have room for 64 backends. Two backends are written, one of them on a flagged node.
fn leave_old_tables(pair: &Pair) {
    Held::open(pair, Options { max_backends: 64, ..Options::default() }).with(|dataplane| {
        wanted(&[(node("a", 1, true), &PEERS[..1]), (node("b", 1, false), &PEERS[1..2])])
            .write(dataplane)
            .unwrap();
        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
    });
}

/// A device that is not switched yet cuts by the old tables and the present verdicts. A backend that has moved to another node must be deleted from the old tables.
#[test]
fn what_moves_to_another_node_passes_on_the_old_maps() {
    let pair = Pair::new("moves");
    leave_old_tables(&pair);
    let mut held = Held::open(&pair, Options { max_backends: 128, ..Options::default() });
    held.with(|dataplane| {
        assert!(dataplane.devices.is_staged());
        wanted(&[(node("a", 1, true), &PEERS[..1]), (node("b", 1, true), &PEERS[1..2])])
            .write(dataplane)
            .unwrap();
    });
    assert!(
        !arrives(&pair, PEERS[0]) && !arrives(&pair, PEERS[1]),
        "a backend that has not moved is not cut"
    );
    let old: Backends = pair.near.run(|| open(&pin_dir(), "backends"));
    held.with(|dataplane| {
        let left = (node("b", 1, true), &[][..]);
        wanted(&[(node("a", 1, true), &PEERS[..1]), left, (node("c", 1, false), &PEERS[1..2])])
            .write(dataplane)
            .unwrap();
    });
    assert!(!arrives(&pair, PEERS[0]));
    assert!(arrives(&pair, PEERS[1]), "c is not flagged");
    assert_eq!(old.iter().count(), 1);
    held.with(|dataplane| {
        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
        assert!(!dataplane.devices.is_staged());
        wanted(&[]).write(dataplane).unwrap();
    });
    assert_eq!(old.iter().count(), 1, "the old map was written after the switch");
}

/// The new map may have no room for a backend of the old map. That backend is deleted from the old map, although the new map does not change for it.
#[test]
fn what_a_smaller_map_has_no_room_for_passes_on_the_old_one() {
    let pair = Pair::new("smaller");
    leave_old_tables(&pair);
    let mut held = Held::open(&pair, Options { max_backends: 1, ..Options::default() });
    held.with(|dataplane| {
        assert!(dataplane.devices.is_staged());
        wanted(&[(node("a", 1, true), &PEERS[2..3]), (node("b", 1, true), &[])]).write(dataplane).unwrap();
    });
    assert!(
        arrives(&pair, PEERS[0]) && arrives(&pair, PEERS[1]),
        "an address that is no backend any more is cut"
    );
    held.with(|dataplane| assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None));
    assert!(!arrives(&pair, PEERS[2]));
}

/// A lapsed lease stays lapsed until an agent begins it anew. No call shortens a lease.
#[test]
fn a_lease_that_has_lapsed_stays_so() {
    Pair::new("lease").near.run(|| {
        let says = || dataplane::lease(&pin_dir());
        assert_eq!(says(), 0, "there is a lease and no pin");
        let dataplane = Dataplane::open(&Options::default()).unwrap();
        let mut writer = NodeWriter::new(&dataplane.devices).unwrap();
        for (now, until, anew, then) in [
            (10, 20, false, 0),
            (10, 20, true, 20),
            (19, 30, false, 30),
            (19, 25, true, 30),
            (30, 40, false, 30),
            (30, 40, true, 40),
        ] {
            writer.prolong(now, until, anew).unwrap();
            assert_eq!(says(), then, "{until} at {now}");
        }
        drop((writer, dataplane));
        let mut bridge = NodeWriter::pinned(&pin_dir()).unwrap().0;
        bridge.prolong(39, 50, false).unwrap();
        assert_eq!(says(), 50);
        bridge.prolong(50, 60, false).unwrap();
        assert_eq!(says(), 50);
    });
}

/// An older agent may have pinned no `lease`, and a newer agent may have pinned a map that this one does not know. The other maps are adopted.
#[test]
fn a_set_with_a_map_more_or_less_is_gone_on_with() {
    Pair::new("sets").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        wanted(&[(node("a", 7, true), &PEERS[..1])]).write(&mut dataplane).unwrap();
        drop(dataplane);
        fs::remove_file(pin_dir().join("lease")).unwrap();
        Array::<MapData, u64>::create(1, 0).unwrap().pin(pin_dir().join("later")).unwrap();
        let (mut bridge, owned) = NodeWriter::pinned(&pin_dir()).unwrap();
        assert_eq!(owned.len(), 1);
        bridge.prolong(10, 20, true).unwrap();
        assert_eq!(dataplane::lease(&pin_dir()), 0);
        let dataplane = Dataplane::open(&Options::default()).unwrap();
        assert!(!dataplane.devices.is_staged());
        assert_eq!(dataplane.tables.owned().unwrap(), owned);
        NodeWriter::new(&dataplane.devices).unwrap().prolong(10, 20, true).unwrap();
        assert_eq!(dataplane::lease(&pin_dir()), 20);
        drop(dataplane);
        dataplane::detach(&pin_dir()).unwrap();
        assert!(!pin_dir().exists());
    });
}

/// Only the programs that use a map of another layout know what its values mean. That map and all pins beside it are removed once a device is attached.
#[test]
fn an_old_map_of_another_layout_is_put_aside() {
    Pair::new("layout").near.run(|| {
        drop(Dataplane::open(&Options::default()).unwrap());
        replace_nodes::<u64>(MAX_NODES);
        assert!(NodeWriter::pinned(&pin_dir()).is_none());
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        assert!(!dataplane.devices.is_staged());
        NodeWriter::new(&dataplane.devices).unwrap().write_node(1, &node("hung", 1, true)).unwrap();
        let aside = pin_dir().with_file_name("v0");
        let old: Array<MapData, u64> = open(&aside, "nodes");
        assert_eq!(old.get(&1, 0).unwrap(), 0);
        let there = dataplane.tables.owned().unwrap();
        assert_eq!(there.len(), 1);
        assert_eq!((there[0].0, there[0].1.verdict), (1, Verdict::Flagged as u32));
        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
        assert!(!aside.exists());
    });
}
