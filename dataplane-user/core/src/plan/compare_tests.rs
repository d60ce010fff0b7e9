use std::collections::{BTreeSet, HashMap};

use super::{Fix, Pass};

type Map = HashMap<u32, u32>;

/// Shows a pass these entries, and then all keys that it wants to look up. Gives what it mends, in order.
fn mends(pass: &mut Pass<u32, u32>, there: &Map, wanted: &Map, left_out: &[u32]) -> Vec<(u32, Fix<u32>)> {
    let mut mends = Vec::new();
    for (key, value) in there {
        mends.extend(pass.look(key, value, wanted).map(|fix| (*key, fix)));
    }
    pass.seen_all(wanted, &left_out.iter().copied().collect::<BTreeSet<u32>>());
    while let Some((key, _)) = pass.next_entry() {
        if !there.contains_key(&key) {
            mends.push((key, Fix::Put(wanted[&key])));
        }
    }
    mends.sort_by_key(|(key, _)| *key);
    mends
}

#[test]
fn what_differs_is_mended() {
    let wanted = Map::from([(1, 10), (2, 20), (3, 30), (4, 40)]);
    let there = Map::from([(1, 10), (2, 21), (3, 30), (9, 90)]);
    let fixes = mends(&mut Pass::default(), &there, &wanted, &[]);
    assert_eq!(fixes, [(2, Fix::Put(20)), (4, Fix::Put(40)), (9, Fix::Delete)]);
    // What did not fit is not missing.
    assert_eq!(mends(&mut Pass::default(), &there, &wanted, &[4]), [(2, Fix::Put(20)), (9, Fix::Delete)]);
}

/// Hundreds of thousands of keys are looked up only where their number says that one may be missing.
#[test]
fn keys_are_looked_up_only_where_one_may_be_missing() {
    let wanted = Map::from([(1, 10), (2, 20)]);
    let mut pass = Pass::default();
    assert_eq!(mends(&mut pass, &wanted, &wanted, &[]), []);
    let looked_up = |mut pass: Pass<u32, u32>, there: &[(u32, u32)], left_out: &[u32]| {
        for (key, value) in there {
            pass.look(key, value, &wanted);
        }
        pass.seen_all(&wanted, &left_out.iter().copied().collect::<BTreeSet<u32>>());
        std::iter::from_fn(|| pass.next_entry()).map(|(key, _)| key).collect::<BTreeSet<u32>>()
    };
    assert_eq!(looked_up(Pass::default(), &[(1, 10), (2, 20)], &[]), BTreeSet::new());
    assert_eq!(looked_up(Pass::default(), &[(1, 10)], &[2]), BTreeSet::new());
    assert_eq!(looked_up(Pass::default(), &[(1, 10)], &[]), BTreeSet::from([1, 2]));
    // A foreign entry makes up for none that is missing.
    assert_eq!(looked_up(Pass::default(), &[(1, 10), (9, 90)], &[]), BTreeSet::from([1, 2]));
    // Where something was written meanwhile the number says nothing.
    let mut changed = Pass::default();
    changed.changed();
    assert_eq!(looked_up(changed, &[(1, 10), (2, 20)], &[]), BTreeSet::from([1, 2]));
}
