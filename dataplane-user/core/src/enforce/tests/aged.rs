//! `--max-view-age`: a view that nobody confirms cuts nothing in the end.

use std::{sync::Arc, time::Duration};

use super::{
    model::Cluster,
    rig::{Rig, SECOND, now, settings},
    texts::text,
};
use crate::enforce::{EnforcerSettings, Event, Input, NewView, Now, Standing};

const MAX: Duration = Duration::from_secs(60);

fn aging() -> EnforcerSettings {
    EnforcerSettings { max_view_age: Some(MAX), ..settings() }
}

/// Two nodes are flagged.
fn rig(settings: EnforcerSettings) -> Rig {
    let mut rig = Rig::with(&text("abcdefghijkl", &["b", "be"]), settings);
    for node in ["b", "e"] {
        rig.flag(node).unwrap();
    }
    rig
}

/// How the claim on `b` stands, how many nodes are observed, whether the snapshot says that the view is too old, and what the log has of that.
fn shown(rig: &Rig) -> (Standing, usize, bool, Vec<&Event>) {
    let world = rig.world();
    let ages = |event: &&Event| matches!(event, Event::ViewTooOld(_) | Event::ViewConfirmed);
    let events = rig.events.iter().filter(ages).collect();
    let standing = world.claims.of("b")[0].standing.clone();
    (standing, world.observed.iter().count(), world.view_is_old, events)
}

#[test]
fn a_view_that_is_too_old_cuts_nothing_until_it_is_confirmed() {
    let mut rig = rig(aging());
    let (begun, age) = (rig.now.mono, MAX.as_nanos() as u64);
    assert_eq!(rig.cut(), "b,e");
    rig.pass(age - 1);
    assert_eq!(rig.cut(), "b,e");
    assert_eq!(rig.enforcer.deadline(), begun + age);
    assert!(!rig.maps.exempt.is_empty());
    rig.pass(1);
    // At once, and packets that would be cut are counted.
    assert_eq!(rig.cut(), "");
    let over = Event::ViewTooOld(MAX);
    assert_eq!(shown(&rig), (Standing::Observed, 2, true, vec![&over]));
    assert_eq!((rig.entry("b").until > rig.now.mono, rig.maps.exempt.len()), (true, 0));
    rig.pass(3 * age);
    assert_eq!(shown(&rig), (Standing::Observed, 2, true, vec![&over]), "it is said once");
    // Its source confirms it.
    rig.tell(Input::Confirmed(rig.now));
    assert_eq!(rig.enforcer.confirmed_at(), rig.now.mono);
    assert_eq!(rig.cut(), "b,e");
    assert_eq!(shown(&rig), (Standing::Enforced, 0, false, vec![&over, &Event::ViewConfirmed]));
    rig.pass(age - 1);
    assert_eq!(rig.cut(), "b,e");
    // Another view, in time.
    let cluster = Cluster::parse(&text("abcdefghijkl", &["b", "be"]));
    rig.view(&cluster);
    rig.pass(age - 1);
    assert_eq!(rig.cut(), "b,e");
    rig.pass(1);
    assert_eq!(rig.cut(), "");
    rig.view(&cluster);
    assert_eq!(rig.cut(), "b,e");
}

#[test]
fn by_default_a_view_holds_however_old_it_is() {
    let mut rig = rig(settings());
    rig.pass(3_600 * SECOND);
    assert_eq!(rig.cut(), "b,e");
    assert_eq!(shown(&rig), (Standing::Enforced, 0, false, vec![]));
}

/// The age is that of the view in the maps.
#[test]
fn a_view_whose_tables_are_not_written_confirms_nothing() {
    let mut rig = rig(aging());
    rig.writes_tables = false;
    rig.pass(50 * SECOND);
    rig.view(&Cluster::parse(&text("abcdefghijk", &["b", "be"])));
    rig.tell(Input::Confirmed(rig.now));
    // For readers of the snapshot the view is confirmed already.
    assert_eq!(rig.enforcer.confirmed_at(), rig.now.mono);
    rig.pass(10 * SECOND);
    assert_eq!(rig.cut(), "");
    rig.write_tables();
    rig.run();
    assert_eq!(rig.cut(), "b,e");
    // The age counts from when the view was read.
    rig.pass(49 * SECOND);
    assert_eq!(rig.cut(), "b,e");
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "");
}

/// The clock of the age goes on while the machine sleeps.
#[test]
fn a_machine_that_slept_has_an_old_view() {
    let mut rig = rig(aging());
    rig.now.boot += MAX;
    rig.tell(Input::Tick);
    assert_eq!(rig.cut(), "");
}

/// An earlier agent cut by a view whose age is not known.
#[test]
fn an_agent_that_waits_for_its_first_view_renews_no_longer_than_that() {
    let before = rig(settings());
    let begun = before.now.mono + SECOND;
    let mut rig = Rig::over(before.maps, before.saved, aging(), begun);
    rig.run();
    rig.pass(59 * SECOND);
    assert_eq!(rig.cut(), "b,e");
    rig.pass(4 * SECOND);
    assert_eq!(rig.cut(), "");
    assert_eq!(rig.events.iter().filter(|event| matches!(event, Event::ViewTooOld(_))).count(), 1);
    rig.view(&Cluster::parse(&text("abcdefghijkl", &["b", "be"])));
    assert_eq!(rig.cut(), "b,e");
    assert_eq!(rig.now, now(begun + 63 * SECOND));
}

/// The first view is what an earlier agent stored before the machine booted an hour ago. No clock but the wall clock counts the time before that.
#[test]
fn a_view_from_before_the_boot_is_as_old_as_the_wall_clock_says() {
    let max = Duration::from_secs(7_200);
    let stored = |age: Duration| {
        let before = rig(settings());
        let aging = EnforcerSettings { max_view_age: Some(max), ..settings() };
        let mut rig = Rig::over(before.maps, before.saved, aging, before.now.mono);
        assert!(rig.now.boot < max - MAX);
        let view = rig.deliver(&Cluster::parse(&text("abcdefghijkl", &["b", "be"])));
        let read = Now { mono: 0, boot: Duration::ZERO, wall: rig.now.wall - age };
        rig.tell(Input::View { view: Arc::new(NewView { read, ..NewView::clone(&view) }), flags: None });
        rig
    };
    assert_eq!(stored(max).cut(), "");
    let mut young = stored(max - MAX);
    let age = MAX.as_nanos() as u64;
    young.pass(age - 1);
    assert_eq!(young.cut(), "b,e");
    young.pass(1);
    assert_eq!(young.cut(), "");
    // What the source confirms since then is as old as the clocks of this boot say.
    young.tell(Input::Confirmed(young.now));
    young.pass(age);
    assert_eq!(young.cut(), "b,e");
}
