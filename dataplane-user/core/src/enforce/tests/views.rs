//! Views that come while tables are written, and the beat of renewals.

use super::{
    model::Cluster,
    rig::{BEGIN, Fate, Rig, SECOND, claim, settings},
    texts::text,
};
use crate::enforce::{ClaimSource, Epoch, Input, Output};

#[test]
fn verdicts_are_renewed_each_second() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.flag("b").unwrap();
    rig.did();
    assert_eq!(rig.enforcer.deadline(), BEGIN + SECOND);
    for n in 1..10 {
        rig.pass(SECOND);
        assert_eq!(rig.entry("b").until, BEGIN + (n + 3) * SECOND);
        assert_eq!(rig.lease, Some(rig.now.mono + 3 * SECOND));
    }
    assert_eq!(rig.did(), ["cut b"; 9]);
}

#[test]
fn the_lease_is_not_renewed_once_the_drain_is_silent() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.pass(59 * SECOND);
    assert_eq!(rig.lease, Some(rig.now.mono + 3 * SECOND));
    rig.pass(60 * SECOND);
    let last = rig.lease;
    assert_eq!(last, Some(BEGIN + 62 * SECOND));
    rig.tell(Input::DrainAlive(rig.now.mono));
    rig.pass(SECOND);
    assert_eq!(rig.lease, Some(rig.now.mono + 3 * SECOND));
}

/// A view that comes while tables are written waits. Of several, the last is taken.
#[test]
fn the_latest_view_waits_for_the_tables() {
    let mut rig = Rig::with(&text("abcdef", &["bc"]), settings());
    rig.flag("b").unwrap();
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("abcdefg", &["b"])));
    rig.did();
    rig.view(&Cluster::parse(&text("abcdefgh", &["bd"])));
    rig.view(&Cluster::parse(&text("abcdefghi", &["bc"])));
    assert_eq!(rig.did(), [""; 0]);
    rig.write_tables();
    rig.run();
    let did = rig.did();
    assert!(did.contains(&"healthy h".to_owned()) && did.contains(&"healthy i".to_owned()), "{did:?}");
    assert_eq!(rig.tables.as_ref().unwrap().epoch, Epoch(4));
    rig.write_tables();
    rig.run();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 0));
}

/// Where a write failed, a newer view is taken in its place. Exemptions hold for both views.
#[test]
fn a_newer_view_is_taken_after_a_failure() {
    let mut rig = Rig::with(&text("abcdef", &["bc"]), settings());
    rig.flag("b").unwrap();
    rig.writes_tables = false;
    for n in 2..28_usize {
        let services = if n % 2 == 0 { ["b", "bc"] } else { ["bc", "b"] };
        rig.view(&Cluster::parse(&text("abcdef", &services)));
        assert!(rig.tables.is_some(), "{n}");
        rig.fail_tables(n % 5);
        rig.run();
        if n % 7 == 0 {
            rig.flag("c").unwrap();
        }
        if n % 7 == 3 {
            rig.unflag("c").unwrap();
        }
        rig.pass(SECOND);
    }
    assert_eq!(rig.maps.exempt.len(), 4);
    while rig.tables.is_some() {
        rig.write_tables();
        rig.run();
    }
    assert_eq!(rig.enforcer.views.written(), Some(Epoch(27)));
    assert_eq!(rig.maps.exempt.len(), 2);
}

/// A round of challenges that began before backends were there, or before the maps held them, left out their clients.
#[test]
fn clients_of_new_backends_are_challenged_by_another_round() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.flag("b").unwrap();
    rig.flag("c").unwrap();
    let since =
        |rig: &Rig| rig.world().enforced.iter().map(|bearer| bearer.challenge_since).collect::<Vec<_>>();
    let first = since(&rig);
    rig.pass(10);
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("abcdef", &["bd"])));
    let told = since(&rig);
    assert!(told[0] > first[0] && told[1] == first[1], "{told:?}");
    rig.pass(10);
    rig.write_tables();
    rig.run();
    assert!(since(&rig)[0] > told[0] && since(&rig)[1] == first[1]);
}

#[test]
fn tables_that_were_not_asked_for_change_nothing() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.did();
    rig.tell(Input::Written { epoch: Epoch(1), result: Ok(()) });
    rig.tell(Input::Written { epoch: Epoch(7), result: Err("no".into()) });
    assert_eq!(rig.did(), [""; 0]);
    assert_eq!(rig.world().tables_error, None);
}

/// A place without an owner is written as unused, and this write too is tried again.
#[test]
fn a_place_that_nobody_has_is_emptied() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    let index = rig.slots.get("f").unwrap().index;
    rig.fates = Box::new(|output| if matches!(output, Output::Node(..)) { Fate::Failed } else { Fate::Done });
    rig.view(&Cluster::parse(&text("abcde", &[])));
    rig.fates = Box::new(|_| Fate::Done);
    assert_eq!(rig.maps.name(index), "f");
    rig.pass(SECOND);
    assert_eq!((rig.maps.name(index).as_str(), rig.maps.nodes[&index].generation), ("", 1));
}

/// A node that leaves the cluster and comes back within one write of the tables has another place.
#[test]
fn a_node_that_comes_back_has_another_generation() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    let before = rig.slots.get("b").unwrap();
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("acdef", &[])));
    rig.view(&Cluster::parse(&text("abcdef", &["b"])));
    assert_ne!(rig.slots.get("b").unwrap(), before);
    assert_eq!(rig.cut(), "");
    rig.write_tables();
    rig.run();
    assert_eq!(rig.cut(), "");
    rig.write_tables();
    rig.run();
    assert_eq!(rig.cut(), "b");
    rig.raise("b", claim(ClaimSource::Cli), false);
}
