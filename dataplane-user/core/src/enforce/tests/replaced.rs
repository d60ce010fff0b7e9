//! A product that forwards Services in kube-proxy's place: nothing is cut beside it without `--force`.

use super::{
    model::Cluster,
    rig::{Rig, SECOND, now, settings},
    texts::text,
};
use crate::{
    enforce::{EnforcerSettings, Event, Input, Standing},
    plan::Mode,
    proxy::Replacement,
};

fn of(device: &str) -> Replacement {
    Replacement::by_devices(|name| name == device).unwrap()
}

fn forced() -> EnforcerSettings {
    EnforcerSettings { force: true, ..settings() }
}

/// Two nodes are flagged.
fn rig(settings: EnforcerSettings) -> Rig {
    let mut rig = Rig::with(&text("abcdefghijkl", &["b", "be"]), settings);
    for node in ["b", "e"] {
        rig.flag(node).unwrap();
    }
    rig
}

/// How the claim on `b` stands, how many nodes are observed, the strongest mode of claims, what forwards, and what the log has of that.
fn shown(rig: &Rig) -> (Standing, usize, Mode, Option<Replacement>, Vec<&Event>) {
    let world = rig.world();
    let its = |event: &&Event| matches!(event, Event::Replaced(_) | Event::Forced(_) | Event::NotReplaced);
    let events = rig.events.iter().filter(its).collect();
    let standing = world.claims.of("b")[0].standing.clone();
    (standing, world.observed.iter().count(), world.mode, world.replacement, events)
}

#[test]
fn beside_it_nothing_is_cut_as_long_as_it_is_there() {
    let (cilium, router) = (of("cilium_host"), of("kube-dummy-if"));
    let (came, other) = (Event::Replaced(cilium), Event::Replaced(router));
    let mut rig = rig(settings());
    assert_eq!(rig.cut(), "b,e");
    assert_eq!(shown(&rig), (Standing::Enforced, 0, Mode::Enforce, None, vec![]));
    rig.tell(Input::Replacement(Some(cilium)));
    // At once, and packets that would be cut are counted.
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("", 0));
    assert_eq!(shown(&rig), (Standing::Observed, 2, Mode::Observe, Some(cilium), vec![&came]));
    rig.tell(Input::Replacement(Some(cilium)));
    rig.pass(60 * SECOND);
    assert!(rig.entry("b").until > rig.now.mono);
    assert_eq!(shown(&rig), (Standing::Observed, 2, Mode::Observe, Some(cilium), vec![&came]), "said once");
    // A node is flagged meanwhile.
    rig.flag("c").unwrap();
    assert_eq!(rig.cut(), "");
    rig.tell(Input::Replacement(Some(router)));
    assert_eq!(rig.cut(), "");
    assert_eq!(shown(&rig), (Standing::Observed, 3, Mode::Observe, Some(router), vec![&came, &other]));
    rig.tell(Input::Replacement(None));
    assert_eq!(rig.cut(), "b,c,e");
    let all = vec![&came, &other, &Event::NotReplaced];
    assert_eq!(shown(&rig), (Standing::Enforced, 0, Mode::Enforce, None, all));
}

#[test]
fn by_force_it_is_cut_all_the_same() {
    let cilium = of("cilium_net");
    let mut rig = rig(forced());
    rig.tell(Input::Replacement(Some(cilium)));
    assert_eq!(rig.cut(), "b,e");
    let event = Event::Forced(cilium);
    assert_eq!(shown(&rig), (Standing::Enforced, 0, Mode::Enforce, Some(cilium), vec![&event]));
    // The weaker of both holds.
    let mut rig = self::rig(EnforcerSettings { mode: Mode::Observe, ..forced() });
    rig.tell(Input::Replacement(Some(cilium)));
    assert_eq!(rig.cut(), "");
}

/// An earlier agent cut, since it was started with `--force` or the trace came after its end.
#[test]
fn before_the_first_view_no_cut_is_renewed_beside_it() {
    for (settings, cut) in [(settings(), ""), (forced(), "b,e")] {
        let before = rig(self::settings());
        let begun = before.now.mono + SECOND;
        let mut rig = Rig::over_beside(before.maps, before.saved, settings, Some(of("antrea-gw0")), begun);
        rig.run();
        rig.pass(4 * SECOND);
        assert_eq!((rig.cut().as_str(), rig.now), (cut, now(begun + 4 * SECOND)));
        rig.view(&Cluster::parse(&text("abcdefghijkl", &["b", "be"])));
        assert_eq!(rig.cut(), cut);
    }
}

/// The replacement comes while a large view is read.
#[test]
fn before_the_first_view_renewals_end_with_its_coming() {
    let before = rig(settings());
    let begun = before.now.mono + SECOND;
    let mut rig = Rig::over(before.maps, before.saved, settings(), begun);
    rig.run();
    rig.pass(4 * SECOND);
    assert_eq!(rig.cut(), "b,e");
    rig.tell(Input::Replacement(Some(of("ovn-k8s-mp0"))));
    rig.pass(4 * SECOND);
    assert_eq!(rig.cut(), "");
}
