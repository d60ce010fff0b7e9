//! Writing the tables: entries that do not fit, and indexes of nodes that change owners under load.
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use nodefence::{
    dataplane::{Dataplane, NodeWriter, Options, WriteReport},
    plan::Tables,
};
use nodefence_common::{Addr, PortKey, port_flags};

use super::support::{PEERS, Pair, arrives, load, node, one_flagged, up0, wanted};

#[test]
fn a_full_map_leaves_entries_out_and_they_pass() {
    let pair = Pair::new("full");
    pair.near.run(|| {
        let mut dataplane = Dataplane::open(&Options { max_backends: 4, ..Options::default() }).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
        // Other backends fill the map first, so the flagged one finds no room.
        let many: Vec<Ipv4Addr> = (10..14).map(|last| Ipv4Addr::new(10, 78, 0, last)).collect();
        let report = wanted(&[(node("a", 1, false), &many)]).write(&mut dataplane).unwrap();
        assert_eq!((report.inserted, report.left_out), (4, 0));
        let with_flagged = [(node("a", 1, false), &many[..]), (node("b", 1, true), &PEERS[1..2])];
        let report = wanted(&with_flagged).write(&mut dataplane).unwrap();
        assert_eq!((report.inserted, report.left_out), (0, 1));
        assert_eq!(report.left_out_first, [IpAddr::V4(PEERS[1])]);
        assert_eq!(dataplane.tables.owned().unwrap().len(), 2, "the rest is written");
    });
    assert!(arrives(&pair, PEERS[1]), "a backend that was left out is cut");
    pair.near.run(|| {
        let mut dataplane = Dataplane::open(&Options { max_backends: 4, ..Options::default() }).unwrap();
        let report = one_flagged().write(&mut dataplane).unwrap();
        assert_eq!((report.deleted, report.inserted, report.left_out), (4, 2, 0), "room is made first");
        dataplane.devices.attach(&up0()).unwrap();
    });
    assert!(!arrives(&pair, PEERS[1]));
}

#[test]
fn equal_entries_are_not_written_again() {
    Pair::new("equal").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let tables = one_flagged().tables;
        assert_eq!(dataplane.write(&tables).unwrap().inserted, 2);
        assert_eq!(dataplane.write(&tables).unwrap(), WriteReport::default());
        assert_eq!(dataplane.tables.backends().unwrap().len(), 2);
    });
}

/// Verdicts and exempt ports have another writer, `NodeWriter`.
#[test]
fn tables_change_no_node_and_nothing_that_is_exempt() {
    Pair::new("theirs").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let addr = Addr::v4(PEERS[1].octets());
        let key = PortKey::exempt(addr, 80, 6);
        let mut flagged = one_flagged();
        flagged.tables.ports = HashMap::from([(PortKey::endpoint(addr, 80, 6), port_flags::CUT)]);
        assert_eq!(flagged.write(&mut dataplane).unwrap().inserted, 3);
        NodeWriter::new(&dataplane.devices).unwrap().exempt_port(&key).unwrap();
        let before = dataplane.tables.owned().unwrap();
        assert_eq!(before.len(), 2);
        assert_eq!(dataplane.write(&Tables::default()).unwrap().deleted, 3);
        assert_eq!(dataplane.tables.owned().unwrap(), before);
        assert_eq!(dataplane.tables.exempt().unwrap(), [(key, port_flags::EXEMPT)]);
    });
}

#[test]
fn a_hundred_thousand_backends_are_written_at_once() {
    Pair::new("many").near.run(|| {
        let options = Options { max_backends: 150_000, ..Options::default() };
        let mut dataplane = Dataplane::open(&options).unwrap();
        let backends: Vec<Ipv4Addr> = (0..100_000).map(|at| Ipv4Addr::from(0x0a80_0000 + at)).collect();
        let all = wanted(&[(node("a", 1, false), &backends)]).tables;
        assert_eq!(dataplane.write(&all).unwrap().inserted, 100_000);
        assert_eq!(dataplane.write(&all).unwrap(), WriteReport::default());
        let half = wanted(&[(node("a", 1, false), &backends[..50_000])]).tables;
        assert_eq!(dataplane.write(&half).unwrap().deleted, 50_000);
        drop(dataplane);
        // A smaller map is filled in `staging` before it replaces the pinned one.
        let smaller = Options { max_backends: 60_000, ..Options::default() };
        let mut dataplane = Dataplane::open(&smaller).unwrap();
        assert_eq!(dataplane.tables.backends().unwrap().len(), 50_000);
        assert_eq!(dataplane.write(&half).unwrap(), WriteReport::default());
    });
}

/// Three nodes exchange indexes at each reload, and one of them is flagged. The healthy nodes must not lose one packet.
#[test]
fn reloads_that_reorder_nodes_never_cut_a_healthy_one() {
    let pair = Pair::new("reorder");
    let healthy = [PEERS[0], PEERS[2]];
    pair.near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
    });
    let load = load(&pair, &healthy);
    let load = pair.near.run(move || {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let mut generations = [0_u32; 3];
        let mut owners = [usize::MAX; 3];
        let begin = Instant::now();
        // An emulated processor manages fewer rounds.
        let goes_on = |round: &usize| *round < 20 || begin.elapsed() < Duration::from_secs(10);
        for round in (0..200_usize).take_while(goes_on) {
            load.pass(10).unwrap();
            let order = [round % 3, (round + 1) % 3, (round + 2) % 3];
            for index in 0..3 {
                if owners[index] != order[index] {
                    owners[index] = order[index];
                    generations[index] += 1;
                }
            }
            let members =
                [("a", false, &PEERS[0..1]), ("hung", true, &PEERS[1..2]), ("c", false, &PEERS[2..3])];
            let nodes: Vec<_> = (0..3)
                .map(|index| {
                    let (name, flagged, backends) = members[order[index]];
                    (node(name, generations[index], flagged), backends)
                })
                .collect();
            wanted(&nodes).write(&mut dataplane).unwrap();
            let index = order.iter().position(|member| *member == 1).unwrap();
            let backends = dataplane.tables.backends().unwrap();
            let hung = backends.iter().find(|(addr, _)| *addr == Addr::v4(PEERS[1].octets())).unwrap().1;
            assert_eq!(hung.node as usize, index);
        }
        load
    });
    for arrived in load.finish().unwrap() {
        assert!(arrived.sent >= 200, "too little load: {}", arrived.sent);
        arrived.all("to a healthy node").unwrap();
    }
    assert!(!arrives(&pair, PEERS[1]), "the flagged node is not cut in the end");
}
