//! `--mode` and `--auto`: the weaker of the two holds.

use super::{
    model::Cluster,
    rig::{Rig, claim, settings},
    texts::text,
};
use crate::{
    enforce::{Auto, ClaimSource, EnforcerSettings, Share, Standing},
    plan::Mode,
};

fn rig(mode: Mode, auto: Auto) -> Rig {
    Rig::with(&text("abcdef", &["b", "c"]), EnforcerSettings { mode, auto, ..settings() })
}

#[test]
fn the_weaker_holds() {
    for (mode, auto, standing, does) in [
        (Mode::Enforce, Auto::Enforce, Standing::Enforced, "cut c"),
        (Mode::Enforce, Auto::Observe, Standing::Observed, "observe c"),
        (Mode::Observe, Auto::Enforce, Standing::Observed, "observe c"),
        (Mode::Observe, Auto::Observe, Standing::Observed, "observe c"),
        (Mode::Enforce, Auto::Off, Standing::Off, "publish "),
        (Mode::Observe, Auto::Off, Standing::Off, "publish "),
    ] {
        let mut rig = rig(mode, auto);
        rig.raise("c", claim(ClaimSource::Hung), false);
        let did = rig.did();
        assert_eq!(did.last().unwrap(), does, "{mode:?} {auto:?}");
        assert_eq!(rig.world().claims.of("c")[0].standing, standing);
        // Exemptions lie in the map only for enforced nodes.
        assert_eq!(rig.maps.exempt.is_empty(), standing != Standing::Enforced);
        assert_eq!(rig.world().would_exempt, usize::from(standing == Standing::Observed));
        // A person's claim is carried out as `--mode` says, whatever `--auto`.
        rig.flag("b").unwrap();
        let cut = mode == Mode::Enforce;
        assert_eq!(rig.did().contains(&"cut b".to_owned()), cut, "{mode:?} {auto:?}");
    }
}

#[test]
fn the_default_observes() {
    assert_eq!(Auto::default(), Auto::Observe);
}

/// The stronger of the two claims on a node holds, and its verdict follows that claim.
#[test]
fn a_person_s_claim_enforces_where_another_is_observed() {
    let mut rig = rig(Mode::Enforce, Auto::Observe);
    rig.raise("b", claim(ClaimSource::Hung), false);
    assert_eq!(rig.did(), ["publish ", "observe b"]);
    rig.flag("b").unwrap();
    assert_eq!(rig.did(), ["publish b", "exempt 10.1.1.2:80", "exempt 10.1.1.2", "cut b"]);
    // Observed again: no packet is cut any more before the exemption goes.
    rig.unflag("b").unwrap();
    assert_eq!(rig.did(), ["observe b", "publish ", "unexempt 10.1.1.2", "unexempt 10.1.1.2:80"]);
}

#[test]
fn what_would_be_exempt_is_counted_over_both() {
    let mut rig = Rig::with(
        &text("abcdef", &["bc"]),
        EnforcerSettings { auto: Auto::Observe, limit: Share { part: 1, of: 1 }, ..settings() },
    );
    rig.flag("b").unwrap();
    rig.raise("c", claim(ClaimSource::Hung), false);
    assert_eq!((rig.world().exempt.len(), rig.world().would_exempt), (0, 2));
    rig.view(&Cluster::parse(&text("abcdef", &["bc", "c"])));
    assert_eq!((rig.world().exempt.len(), rig.world().would_exempt), (0, 3));
    assert!(rig.maps.exempt.is_empty());
}
