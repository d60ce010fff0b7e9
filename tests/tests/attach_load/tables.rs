//! Writing the tables: what does not fit, and node indexes that change owners under load.
use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use aya::maps::{Array, Map, MapData};
use nodefence::dataplane::{Dataplane, Options};
use nodefence_common::{Addr, MAX_NODES, Reason, Verdict};

use super::support::{Held, PEERS, Pair, arrives, load, node, one_flagged, pin_dir, tables, up0};

#[test]
fn a_full_map_leaves_entries_out_and_they_pass() {
    let pair = Pair::new("full");
    pair.near.run(|| {
        let mut dataplane = Dataplane::open(&Options { max_backends: 4, ..Options::default() }).unwrap();
        dataplane.attach(&up0());
        // Fill it with others first; then the flagged one finds no room.
        let many: Vec<Ipv4Addr> = (10..14).map(|i| Ipv4Addr::new(10, 78, 0, i)).collect();
        let report = dataplane.write(&tables(&[(node("a", 1, false), &many)])).unwrap();
        assert_eq!((report.inserted, report.left_out), (4, 0));
        let with_flagged = [(node("a", 1, false), &many[..]), (node("b", 1, true), &PEERS[1..2])];
        let report = dataplane.write(&tables(&with_flagged)).unwrap();
        assert_eq!((report.inserted, report.left_out), (0, 1));
        assert_eq!(report.left_out_first, [IpAddr::V4(PEERS[1])]);
        assert_eq!(dataplane.nodes().unwrap().len(), 2, "the rest is written");
    });
    assert!(arrives(&pair, PEERS[1]), "what is left out passes");
    pair.near.run(|| {
        let mut dataplane = Dataplane::open(&Options { max_backends: 4, ..Options::default() }).unwrap();
        let report = dataplane.write(&one_flagged()).unwrap();
        assert_eq!((report.deleted, report.inserted, report.left_out), (4, 2, 0), "room is made first");
        dataplane.attach(&up0());
    });
    assert!(!arrives(&pair, PEERS[1]));
}

#[test]
fn equal_entries_are_not_written_again() {
    Pair::new("equal").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let tables = one_flagged();
        let first = dataplane.write(&tables).unwrap();
        assert_eq!(
            (first.inserted, first.nodes),
            (2, 3),
            "the flagged node's entry is first written as healthy"
        );
        assert_eq!(dataplane.write(&tables).unwrap(), nodefence::dataplane::WriteReport::default());
        assert_eq!(dataplane.backends().unwrap().len(), 2);
    });
}

#[test]
fn a_hundred_thousand_backends_are_written_at_once() {
    Pair::new("many").near.run(|| {
        let options = Options { max_backends: 150_000, ..Options::default() };
        let mut dataplane = Dataplane::open(&options).unwrap();
        let backends: Vec<Ipv4Addr> = (0..100_000).map(|i| Ipv4Addr::from(0x0a80_0000 + i)).collect();
        let all = tables(&[(node("a", 1, false), &backends)]);
        assert_eq!(dataplane.write(&all).unwrap().inserted, 100_000);
        assert_eq!(dataplane.write(&all).unwrap(), nodefence::dataplane::WriteReport::default());
        let half = tables(&[(node("a", 1, false), &backends[..50_000])]);
        assert_eq!(dataplane.write(&half).unwrap().deleted, 50_000);
        drop(dataplane);
        // Filled aside into a map that holds fewer.
        let smaller = Options { max_backends: 60_000, ..Options::default() };
        let mut dataplane = Dataplane::open(&smaller).unwrap();
        assert_eq!(dataplane.backends().unwrap().len(), 50_000);
        assert_eq!(dataplane.write(&half).unwrap(), nodefence::dataplane::WriteReport::default());
    });
}

#[test]
fn a_node_that_left_keeps_its_generation() {
    Pair::new("left").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        dataplane.write(&tables(&[(node("a", 7, true), &PEERS[..1])])).unwrap();
        dataplane.write(&tables(&[])).unwrap();
        let left = dataplane.nodes().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].0, left[0].1.generation, left[0].1.verdict), (0, 7, Verdict::Healthy as u32));
        assert_eq!(dataplane.backends().unwrap(), []);
    });
}

#[test]
fn a_new_owner_of_an_index_was_never_heard_of() {
    Pair::new("seen").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let map = MapData::from_pin(pin_dir().join("seen")).and_then(Map::from_map_data);
        let mut seen: Array<_, u64> = map.and_then(Array::try_from).unwrap();
        let owners = |first, second| {
            tables(&[(node("a", first, false), &PEERS[..1]), (node("b", second, true), &PEERS[1..2])])
        };
        dataplane.write(&owners(1, 1)).unwrap();
        for index in 0..2 {
            seen.set(index, &5, 0).unwrap();
        }
        dataplane.write(&owners(1, 2)).unwrap();
        assert_eq!((seen.get(&0, 0).unwrap(), seen.get(&1, 0).unwrap()), (5, 0));
    });
}

#[test]
fn an_index_that_does_not_fit_is_refused() {
    Pair::new("index").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let entry = node("far", 1, false);
        assert!(dataplane.write_node(MAX_NODES, &entry).unwrap_err().to_string().contains("16384"));
        let mut tables = tables(&[]);
        tables.nodes.insert(MAX_NODES, entry);
        assert!(dataplane.write(&tables).is_err());
    });
}

#[test]
fn one_write_flips_a_node() {
    let pair = Pair::new("flip");
    let mut held = Held::open(&pair, Options::default());
    held.with(|dataplane| {
        dataplane.attach(&up0());
        dataplane.write(&tables(&[(node("a", 1, false), &PEERS[..1])])).unwrap();
    });
    assert!(arrives(&pair, PEERS[0]));
    held.with(|dataplane| dataplane.write_node(0, &node("a", 1, true)).unwrap());
    assert!(!arrives(&pair, PEERS[0]));
    let counters = held.with(|dataplane| dataplane.counters().unwrap());
    let dropped = counters.iter().find(|(reason, _)| *reason == Reason::Dropped).unwrap().1.packets;
    assert!(dropped >= 20, "{dropped}");
    held.with(|dataplane| dataplane.write_node(0, &node("a", 1, false)).unwrap());
    assert!(arrives(&pair, PEERS[0]));
}

/// Three nodes trade indexes at every reload; one of them is flagged. The healthy ones must not lose one packet.
#[test]
fn reloads_that_reorder_nodes_never_cut_a_healthy_one() {
    let pair = Pair::new("reorder");
    let healthy = [PEERS[0], PEERS[2]];
    pair.near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        dataplane.attach(&up0());
    });
    let load = load(&pair, &healthy);
    let load = pair.near.run(move || {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        let mut generations = [0_u32; 3];
        let mut owners = [usize::MAX; 3];
        let begin = Instant::now();
        // Fewer rounds on an emulated processor.
        for round in (0..200_usize).take_while(|r| *r < 20 || begin.elapsed() < Duration::from_secs(10)) {
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
            dataplane.write(&tables(&nodes)).unwrap();
            let index = order.iter().position(|o| *o == 1).unwrap();
            let backends = dataplane.backends().unwrap();
            let hung = backends.iter().find(|(addr, _)| *addr == Addr::v4(PEERS[1].octets())).unwrap().1;
            assert_eq!(hung.node as usize, index);
        }
        load
    });
    for arrived in load.finish().unwrap() {
        assert!(arrived.sent >= 200, "too little load: {}", arrived.sent);
        arrived.all("to a healthy node").unwrap();
    }
    assert!(!arrives(&pair, PEERS[1]), "the flagged one is cut in the end");
}
