//! A command changes the mode of an agent that runs: the weaker of it and of what else keeps the agent from cutting holds.

use super::{
    rig::{Rig, SECOND, claim, settings},
    texts::text,
};
use crate::{
    enforce::{ChangedBy, ClaimSource, EnforcerSettings, Event, Input, Share, Standing},
    plan::Mode,
    proxy::Replacement,
};

/// Two nodes are flagged, and one has an automatic claim.
fn rig(settings: EnforcerSettings) -> Rig {
    // No limit withholds the automatic one.
    let limit = Share { part: 1, of: 1 };
    let mut rig = Rig::with(&text("abcdefghijkl", &["b", "be"]), EnforcerSettings { limit, ..settings });
    for node in ["b", "e"] {
        rig.flag(node).unwrap();
    }
    rig.raise("c", claim(ClaimSource::Hung), false);
    rig
}

fn by(rig: &Rig, uid: u32) -> ChangedBy {
    ChangedBy { by: format!("user {uid}"), at: rig.now.wall }
}

fn change(rig: &mut Rig, mode: Mode, uid: u32) -> ChangedBy {
    let by = by(rig, uid);
    rig.tell(Input::Mode(mode, by.clone()));
    by
}

/// The nodes that are cut, how many are observed, the strongest mode of claims, and the mode that was set.
fn shown(rig: &Rig) -> (String, usize, Mode, Mode) {
    let world = rig.world();
    (rig.cut(), world.observed.iter().count(), world.mode, world.set_mode)
}

fn cuts(mode: Mode) -> (String, usize, Mode, Mode) {
    match mode {
        Mode::Enforce => ("b,c,e".to_owned(), 0, mode, mode),
        Mode::Observe => (String::new(), 3, mode, mode),
    }
}

#[test]
fn in_mode_observe_verdicts_are_taken_back_and_in_mode_enforce_given_again() {
    let mut rig = rig(settings());
    assert_eq!(shown(&rig), cuts(Mode::Enforce));
    assert_eq!((rig.maps.exempt.is_empty(), rig.world().mode_changed.clone()), (false, None));
    let observe = change(&mut rig, Mode::Observe, 1000);
    // At once, together with their exemptions.
    assert_eq!(shown(&rig), cuts(Mode::Observe));
    assert_eq!((rig.maps.exempt.len(), rig.world().mode_changed.as_ref()), (0, Some(&observe)));
    assert!(["b", "c", "e"].iter().all(|node| rig.world().claims.of(node)[0].standing == Standing::Observed));
    // The mode holds, and claims that come meanwhile are observed too.
    rig.pass(4 * SECOND);
    rig.flag("d").unwrap();
    assert_eq!((rig.cut().as_str(), rig.entry("b").until > rig.now.mono), ("", true));
    let enforce = change(&mut rig, Mode::Enforce, 0);
    assert_eq!(rig.cut(), "b,c,d,e");
    assert_eq!((rig.maps.exempt.is_empty(), rig.world().mode_changed.as_ref()), (false, Some(&enforce)));
    let told: Vec<&Event> =
        rig.events.iter().filter(|event| matches!(event, Event::ModeChanged(..))).collect();
    let expected = [Event::ModeChanged(Mode::Observe, observe), Event::ModeChanged(Mode::Enforce, enforce)];
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
}

#[test]
fn an_agent_that_was_started_to_observe_cuts_once_it_is_told_to() {
    let mut rig = rig(EnforcerSettings { mode: Mode::Observe, ..settings() });
    assert_eq!(shown(&rig), cuts(Mode::Observe));
    change(&mut rig, Mode::Enforce, 0);
    assert_eq!(shown(&rig), cuts(Mode::Enforce));
}

/// Only a command that changes something counts as the last change.
#[test]
fn what_holds_already_is_no_change() {
    let mut rig = rig(settings());
    change(&mut rig, Mode::Enforce, 7);
    assert_eq!((shown(&rig), rig.world().mode_changed.clone()), (cuts(Mode::Enforce), None));
    assert!(!rig.events.iter().any(|event| matches!(event, Event::ModeChanged(..))));
}

#[test]
fn the_weaker_of_the_mode_and_of_what_replaces_kube_proxy_holds() {
    let found = Replacement::by_devices(|name| name == "cilium_host").unwrap();
    for (force, event) in [(false, Event::Replaced(found)), (true, Event::Forced(found))] {
        let mut rig = rig(EnforcerSettings { mode: Mode::Observe, force, ..settings() });
        rig.tell(Input::Replacement(Some(found)));
        let beside = |rig: &Rig| {
            let its = |event: &&Event| matches!(event, Event::Replaced(_) | Event::Forced(_));
            rig.events.iter().filter(its).cloned().collect::<Vec<_>>()
        };
        // In mode observe a replacement changes nothing, and nobody is told.
        assert_eq!(beside(&rig), []);
        change(&mut rig, Mode::Enforce, 0);
        let held = if force { Mode::Enforce } else { Mode::Observe };
        assert_eq!((rig.world().mode, rig.world().set_mode), (held, Mode::Enforce));
        assert_eq!(rig.cut(), cuts(held).0);
        assert_eq!(beside(&rig), [event], "told by whom it is held back, or what it does all the same");
        rig.tell(Input::Replacement(None));
        assert_eq!(shown(&rig), cuts(Mode::Enforce));
    }
}
