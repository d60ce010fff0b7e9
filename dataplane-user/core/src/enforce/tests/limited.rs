//! Limits for claims that no person made.

use super::{
    model::Cluster,
    rig::{BEGIN, Rig, SECOND, claim, lasting, now, settings},
    texts::text,
};
use crate::enforce::{
    Auto, Change, ClaimSource, EnforcerSettings, Event, Input, LimitScope, Share, Standing, WITHHELD_FOR,
};
use crate::plan::Mode;

const WINDOW: u64 = WITHHELD_FOR.as_nanos() as u64;

/// Twelve nodes without zones or pools that matter: four may be cut.
fn rig() -> Rig {
    let flat = text("defghijklmno", &[]).replace(", zone: y", "").replace("- {name: d,", "- {name: z,");
    Rig::with(&flat, settings())
}

/// A detector's claim that lasts long.
fn detect(rig: &mut Rig, node: &str) {
    let change = Change::Raise { claim: lasting(ClaimSource::Hung, 10_000), force: false };
    rig.tell(Input::Claim { node: node.into(), change, ticket: None });
}

fn withdraw(rig: &mut Rig, node: &str) {
    rig.tell(Input::Claim { node: node.into(), change: Change::Withdraw(ClaimSource::Hung), ticket: None });
}

fn withheld(rig: &Rig) -> String {
    let claims = rig.world().claims.by_name();
    let withheld = claims.iter().filter(|(_, shown)| matches!(shown[0].standing, Standing::Withheld(_)));
    withheld.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",")
}

#[test]
fn a_share_is_at_least_one() {
    let third = |nodes| Share::default().allowed(nodes);
    assert_eq!([0, 1, 2, 3, 5, 6, 5_000].map(third), [1, 1, 1, 1, 1, 2, 1_666]);
    let all = Share { part: 3, of: 2 };
    assert_eq!([0, 2, 4].map(|nodes| all.allowed(nodes)), [1, 2, 4]);
}

#[test]
fn what_exceeds_the_limit_releases_all() {
    let mut rig = rig();
    for node in ["e", "f", "g", "h"] {
        detect(&mut rig, node);
    }
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("e,f,g,h", ""));
    rig.did();
    detect(&mut rig, "i");
    assert_eq!(rig.did(), ["healthy e", "healthy f", "healthy g", "healthy h", "publish "]);
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("", "e,f,g,h,i"));
    let told = rig.events.iter().find_map(|event| match event {
        Event::Withheld(withheld, nodes) => Some((withheld.scope.clone(), withheld.counted, nodes.len())),
        _ => None,
    });
    assert_eq!(told, Some((LimitScope::Whole, 5, 5)));
    let row = &rig.world().withheld[0];
    assert_eq!((&row.scope, row.counted, row.allowed, row.since), (&LimitScope::Whole, 5, 4, rig.now.boot));
    // Withdrawn again: the others stay withheld.
    withdraw(&mut rig, "i");
    assert_eq!(withheld(&rig), "e,f,g,h");
    // Renewed claims are not new.
    rig.pass(10 * SECOND);
    detect(&mut rig, "e");
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("", "e,f,g,h"));
}

#[test]
fn for_five_minutes_only_new_claims_count() {
    let mut rig = rig();
    for node in ["e", "f", "g", "h", "i"] {
        detect(&mut rig, node);
    }
    rig.pass(1);
    for node in ["j", "k", "l", "m"] {
        detect(&mut rig, node);
    }
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("j,k,l,m", "e,f,g,h,i"));
    // One more new claim, and these are withheld in turn: the five minutes begin anew.
    rig.pass(60 * SECOND);
    detect(&mut rig, "n");
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("", "e,f,g,h,i,j,k,l,m,n"));
    rig.pass(WINDOW - 1);
    assert_eq!(rig.world().withheld.len(), 1);
    // After that all claims count again, and are too many.
    rig.pass(1);
    assert_eq!((rig.cut().as_str(), rig.world().withheld[0].since), ("", rig.now.boot));
    for node in ["e", "f", "g", "h", "i", "j"] {
        withdraw(&mut rig, node);
    }
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("", "k,l,m,n"));
    rig.pass(WINDOW);
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("k,l,m,n", ""));
    assert!(rig.events.contains(&Event::NoMoreWithheld(LimitScope::Whole)));
}

#[test]
fn a_person_s_flags_use_the_limit_up_and_stay() {
    let mut rig = rig();
    for node in ["e", "f", "g"] {
        detect(&mut rig, node);
    }
    rig.flag("h").unwrap();
    assert_eq!(rig.cut(), "e,f,g,h");
    // A node that has claims of both kinds counts once.
    rig.flag("e").unwrap();
    assert_eq!(rig.cut(), "e,f,g,h");
    rig.did();
    rig.flag("i").unwrap();
    assert_eq!(rig.cut(), "e,h,i");
    assert_eq!(rig.did()[..3], ["healthy f", "healthy g", "publish e,h,i"]);
    // Persons' claims alone may go beyond the limit.
    rig.flag("j").unwrap();
    rig.raise("k", claim(ClaimSource::Cli), true);
    assert_eq!(rig.cut(), "e,h,i,j,k");
    rig.pass(1);
    detect(&mut rig, "l");
    assert_eq!(rig.cut(), "e,h,i,j,k");
    assert_eq!(rig.world().claims.of("l")[0].standing, Standing::Withheld([LimitScope::Whole].into()));
    for node in ["e", "h", "i", "j", "k"] {
        rig.unflag(node).unwrap();
    }
    assert_eq!(rig.cut(), "");
    rig.pass(WINDOW);
    assert_eq!(rig.cut(), "e,f,g,l");
}

#[test]
fn each_zone_and_each_pool_has_its_own_limit() {
    // Three nodes in zone x and pool front, nine in zone y, of which one is alone in pool back.
    let mut rig = Rig::with(&text("abcdefghijkl", &[]), settings());
    detect(&mut rig, "b");
    assert_eq!(rig.cut(), "b");
    detect(&mut rig, "d");
    detect(&mut rig, "e");
    assert_eq!(rig.cut(), "b,d,e");
    detect(&mut rig, "c");
    assert_eq!(rig.cut(), "d,e");
    let scopes = [LimitScope::Zone("x".into()), LimitScope::Pool("front".into())];
    assert_eq!(rig.world().claims.of("b")[0].standing, Standing::Withheld(scopes.into()));
    // Claims that are withheld in one scope count in others: with one more there are five of twelve.
    detect(&mut rig, "f");
    assert_eq!((rig.cut().as_str(), rig.world().withheld.len()), ("", 3));
}

#[test]
fn a_smaller_view_lowers_the_limit() {
    let mut rig = rig();
    for node in ["e", "f", "g", "h"] {
        detect(&mut rig, node);
    }
    let fewer = text("efghijklmno", &[]).replace(", zone: y", "");
    rig.did();
    rig.view(&Cluster::parse(&fewer));
    assert_eq!(rig.cut(), "");
    let did = rig.did();
    let at = |what: &str| did.iter().position(|did| did == what).unwrap();
    assert!(at("healthy h") < at("tables 2"), "{did:?}");
}

/// Two of three nodes would be too many. Two of eleven are not.
#[test]
fn what_a_source_flags_counts_in_the_view_that_it_comes_with() {
    let cluster = |names| text(names, &[]).replace(", zone: y", "");
    let mut rig = Rig::with(&cluster("efg"), settings());
    detect(&mut rig, "e");
    assert_eq!(rig.cut(), "e");
    let view = rig.deliver(&Cluster::parse(&cluster("efghijklmno")));
    let flags = vec![("f".into(), claim(ClaimSource::File))];
    rig.tell(Input::View { view, flags: Some(flags) });
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str()), ("e,f", ""));
}

#[test]
fn observed_claims_are_withheld_as_enforced_ones_are() {
    for (mode, auto) in [(Mode::Observe, Auto::Enforce), (Mode::Enforce, Auto::Observe)] {
        let mut rig = Rig::with(&text("defghi", &[]), EnforcerSettings { mode, auto, ..settings() });
        detect(&mut rig, "e");
        detect(&mut rig, "f");
        assert_eq!(rig.world().observed.iter().count(), 2);
        detect(&mut rig, "g");
        assert_eq!((rig.world().observed.iter().count(), withheld(&rig).as_str()), (0, "e,f,g"));
    }
}

#[test]
fn what_is_off_does_not_count() {
    let mut rig = Rig::with(&text("defghi", &[]), EnforcerSettings { auto: Auto::Off, ..settings() });
    for node in ["e", "f", "g"] {
        detect(&mut rig, node);
    }
    assert!(rig.world().withheld.is_empty());
    assert_eq!(rig.world().claims.of("e")[0].standing, Standing::Off);
}

/// A claim on a node that is unknown counts nowhere.
#[test]
fn who_is_not_in_the_view_does_not_count() {
    let mut rig = rig();
    for node in ["e", "f", "g", "h", "unknown"] {
        detect(&mut rig, node);
    }
    assert_eq!(rig.cut(), "e,f,g,h");
}

/// The five minutes are remembered over a take-over.
#[test]
fn a_take_over_remembers_what_was_withheld() {
    let mut rig = rig();
    for node in ["e", "f", "g", "h", "i"] {
        detect(&mut rig, node);
    }
    rig.pass(1);
    detect(&mut rig, "j");
    assert_eq!(rig.cut(), "j");
    let view = std::sync::Arc::clone(&rig.known[&rig.last.as_ref().unwrap().epoch].cluster);
    let mut next = Rig::over(rig.maps.clone(), rig.saved.clone(), settings(), rig.now.mono + SECOND);
    next.run();
    next.view(&view);
    assert_eq!((next.cut().as_str(), withheld(&next).as_str()), ("j", "e,f,g,h,i"));
}

/// Five of twelve, one too many: all are withheld.
fn flapping() -> Rig {
    let mut rig = rig();
    for node in ["e", "f", "g", "h", "i"] {
        detect(&mut rig, node);
    }
    rig.pass(SECOND);
    rig
}

/// When the claim was first raised, in seconds from the beginning.
fn raised(rig: &Rig, node: &str) -> u64 {
    let claim = &rig.world().claims.of(node)[0].claim;
    let wall = claim.since.duration_since(now(BEGIN).wall).as_secs();
    assert_eq!((claim.raised - now(BEGIN).boot).as_secs(), wall as u64, "the two clocks tell the same");
    wall as u64
}

#[test]
fn what_is_withheld_is_not_new_once_it_comes_back() {
    let mut rig = flapping();
    withdraw(&mut rig, "e");
    withdraw(&mut rig, "f");
    rig.pass(SECOND);
    detect(&mut rig, "e");
    assert_eq!((rig.cut().as_str(), withheld(&rig).as_str(), raised(&rig, "e")), ("", "e,g,h,i", 0));
    // Once more, after the claim has come back.
    withdraw(&mut rig, "e");
    rig.pass(60 * SECOND);
    detect(&mut rig, "e");
    assert_eq!((rig.cut().as_str(), raised(&rig, "e")), ("", 0));
    // Another source's claim is new, and so is one on a node without withheld claims.
    let ticket = rig.raise("f", lasting(ClaimSource::Unreachable, 10_000), false);
    assert!(rig.answers[&ticket].is_ok());
    detect(&mut rig, "j");
    assert_eq!((rig.cut().as_str(), raised(&rig, "f"), raised(&rig, "j")), ("f,j", 62, 62));
    // And a new claim that goes and comes back is still new: no limit withheld it.
    withdraw(&mut rig, "j");
    rig.pass(SECOND);
    detect(&mut rig, "j");
    assert_eq!((rig.cut().as_str(), raised(&rig, "j")), ("f,j", 63));
    // The five minutes are over: when the claim was first raised is forgotten.
    for node in ["e", "g", "h", "i"] {
        withdraw(&mut rig, node);
    }
    rig.pass(WINDOW);
    assert!(rig.world().withheld.is_empty());
    detect(&mut rig, "e");
    assert_eq!((rig.cut().as_str(), raised(&rig, "e")), ("e,f,j", 363));
}

/// A claim that ends counts as one that is withdrawn, whether it is raised after somebody noticed the end or before.
#[test]
fn what_is_withheld_and_lapses_is_not_new_once_it_comes_back() {
    for noticed in [true, false] {
        let mut rig = flapping();
        rig.raise("e", claim(ClaimSource::Hung), false);
        if noticed {
            rig.pass(31 * SECOND);
            assert!(rig.events.contains(&Event::Over("e".into(), ClaimSource::Hung)));
            assert_eq!(withheld(&rig), "f,g,h,i");
        } else {
            rig.now = now(rig.now.mono + 31 * SECOND);
        }
        detect(&mut rig, "e");
        assert_eq!((rig.cut().as_str(), withheld(&rig).as_str(), raised(&rig, "e")), ("", "e,f,g,h,i", 0));
    }
}

/// Nobody looked at the clock meanwhile: a claim that comes back after the five minutes is new all the same.
#[test]
fn what_comes_back_late_is_new() {
    let mut rig = flapping();
    withdraw(&mut rig, "e");
    rig.now = now(BEGIN + WINDOW);
    detect(&mut rig, "e");
    assert_eq!(raised(&rig, "e"), 300);
}

/// A claim that no limit withheld, and that was gone when others were withheld, is new once it comes back.
#[test]
fn what_was_gone_at_the_release_is_new() {
    let mut rig = flapping();
    detect(&mut rig, "j");
    withdraw(&mut rig, "j");
    rig.pass(SECOND);
    for node in ["k", "l", "m", "n", "o"] {
        detect(&mut rig, node);
    }
    assert_eq!(rig.cut(), "");
    rig.pass(SECOND);
    detect(&mut rig, "j");
    assert_eq!((rig.cut().as_str(), raised(&rig, "j")), ("j", 3));
}

/// When a limit withholds claims a second time, those that it withheld before stay as old as they were.
#[test]
fn a_release_in_the_five_minutes_leaves_what_is_gone_withheld() {
    let mut rig = flapping();
    withdraw(&mut rig, "e");
    for node in ["j", "k", "l", "m", "n"] {
        detect(&mut rig, node);
    }
    rig.pass(WINDOW - SECOND);
    detect(&mut rig, "e");
    assert_eq!((rig.cut().as_str(), raised(&rig, "e")), ("", 0));
    rig.pass(SECOND - 1);
    assert_eq!(rig.cut(), "");
}

/// A withheld claim that is gone is remembered over a take-over, whether it comes back before or after the successor's first view.
#[test]
fn a_take_over_remembers_what_is_gone() {
    for before_the_view in [true, false] {
        let mut rig = flapping();
        withdraw(&mut rig, "e");
        let view = std::sync::Arc::clone(&rig.known[&rig.last.as_ref().unwrap().epoch].cluster);
        let mut next = Rig::over(rig.maps.clone(), rig.saved.clone(), settings(), rig.now.mono + SECOND);
        next.run();
        withdraw(&mut next, "f");
        if before_the_view {
            detect(&mut next, "e");
            detect(&mut next, "f");
        }
        next.view(&view);
        if !before_the_view {
            assert_eq!(withheld(&next), "g,h,i");
            detect(&mut next, "e");
            detect(&mut next, "f");
        }
        assert_eq!((next.cut().as_str(), withheld(&next).as_str()), ("", "e,f,g,h,i"));
        assert_eq!((raised(&next, "e"), raised(&next, "f")), (0, 0));
    }
}
