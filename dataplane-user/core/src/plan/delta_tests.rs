use std::collections::{BTreeSet, HashMap};

use nodefence_common::{Addr, BackendEntry, PortKey, port_flags};
use proptest::prelude::*;

use super::{Delta, LeftOut, Step, Tables};

fn addr(last: u8) -> Addr {
    Addr::v4([10, 0, 0, last])
}

fn key(last: u8) -> PortKey {
    PortKey::endpoint(addr(last), 9100, 6)
}

/// Backends with the generations of their nodes, and ports.
fn tables(backends: &[(u8, u32)], ports: &[u8]) -> Tables {
    let entry = |generation| BackendEntry { node: 0, generation, flags: 0 };
    Tables {
        backends: backends.iter().map(|(last, generation)| (addr(*last), entry(*generation))).collect(),
        ports: ports.iter().map(|last| (key(*last), port_flags::CUT)).collect(),
    }
}

/// Makes the writes in a map that holds this many backends. Returns what did not fit.
fn make(there: &mut Tables, delta: &Delta, room: usize) -> LeftOut {
    let mut left_out = LeftOut::default();
    for step in delta.steps() {
        match step {
            Step::DropPort(key) => drop(there.ports.remove(&key)),
            Step::DropBackend(addr) => drop(there.backends.remove(&addr)),
            Step::PutBackend(addr, entry) => {
                assert!(!there.backends.contains_key(&addr), "{addr:?}");
                // Where one backend found no room, no other will.
                if left_out.backends.is_empty() && there.backends.len() < room {
                    there.backends.insert(addr, entry);
                } else {
                    left_out.backends.insert(addr);
                }
            }
            Step::PutPort(key, flags, lies) => {
                assert_eq!(there.ports.insert(key, flags).is_some(), lies, "{key:?}");
            }
        }
    }
    left_out
}

#[test]
fn only_what_changed_is_written_and_deletes_come_first() {
    let before = tables(&[(1, 1), (2, 1), (3, 1)], &[1, 2]);
    let after = tables(&[(2, 1), (3, 2), (4, 1)], &[2, 4]);
    let steps: Vec<Step> = Delta::between(&before, &LeftOut::default(), &after).steps().collect();
    let is_of = |step: &Step| match step {
        Step::DropPort(dropped) => *dropped == key(1),
        Step::DropBackend(dropped) => *dropped == addr(1) || *dropped == addr(3),
        Step::PutBackend(put, entry) => {
            (*put, entry.generation) == (addr(3), 2) || (*put, entry.generation) == (addr(4), 1)
        }
        Step::PutPort(put, _, lies) => (*put, *lies) == (key(4), false),
    };
    assert_eq!((steps.len(), steps.iter().filter(|step| is_of(step)).count()), (6, 6), "{steps:?}");
    let rank = |step: &Step| match step {
        Step::DropPort(_) => 0,
        Step::DropBackend(_) => 1,
        Step::PutBackend(..) => 2,
        Step::PutPort(..) => 3,
    };
    assert!(steps.iter().is_sorted_by_key(rank), "{steps:?}");
    assert_eq!(Delta::between(&after, &LeftOut::default(), &after).steps().count(), 0);
}

/// Whichever address is written first: at no time do both belong to one node.
#[test]
fn two_that_change_nodes_with_each_other_are_never_both_one_node_s() {
    let before = tables(&[(1, 1), (2, 2)], &[]);
    let after = tables(&[(1, 2), (2, 1)], &[]);
    let mut there = before.backends.clone();
    for step in Delta::between(&before, &LeftOut::default(), &after).steps() {
        match step {
            Step::DropBackend(addr) => drop(there.remove(&addr)),
            Step::PutBackend(addr, entry) => drop(there.insert(addr, entry)),
            Step::DropPort(_) | Step::PutPort(..) => unreachable!("{step:?}"),
        }
        for generation in [1, 2] {
            let its = there.values().filter(|entry| entry.generation == generation).count();
            assert!(its <= 1, "{step:?}: {there:?}");
        }
    }
    assert_eq!(there, after.backends);
}

fn any_tables() -> impl Strategy<Value = Tables> {
    let backends = proptest::collection::hash_map(0_u8..12, 1_u32..4, 0..12);
    let ports = proptest::collection::hash_set(0_u8..12, 0..6);
    (backends, ports).prop_map(|(backends, ports)| {
        let backends: Vec<(u8, u32)> = backends.into_iter().collect();
        tables(&backends, &ports.into_iter().collect::<Vec<_>>())
    })
}

proptest! {
    /// Entries that did not fit are put as soon as there is room, and no other entry is ever missing, left over or old.
    #[test]
    fn the_maps_follow(all in proptest::collection::vec((any_tables(), 0_usize..12), 1..12)) {
        let (mut there, mut left_out, mut before) = (Tables::default(), LeftOut::default(), Tables::default());
        for (after, room) in all {
            let fits = room.max(there.backends.len());
            left_out = make(&mut there, &Delta::between(&before, &left_out, &after), fits);
            let wanted: HashMap<Addr, BackendEntry> = after
                .backends
                .iter()
                .filter(|(addr, _)| !left_out.backends.contains(addr))
                .map(|(addr, entry)| (*addr, *entry))
                .collect();
            prop_assert_eq!(&there.backends, &wanted);
            prop_assert_eq!(&there.ports, &after.ports);
            let addrs: BTreeSet<Addr> = after.backends.keys().copied().collect();
            prop_assert!(left_out.backends.is_subset(&addrs));
            prop_assert!(left_out.backends.is_empty() || there.backends.len() >= fits);
            before = after;
        }
    }
}
