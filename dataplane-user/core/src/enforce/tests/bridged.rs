//! A take-over: the first state of an Enforcer.

use std::sync::Arc;

use nodefence_common::NodeEntry;

use super::{
    model::{Cluster, Maps},
    rig::{Fate, Rig, SECOND, claim, lasting, settings},
    texts::text,
};
use crate::{
    cluster::NodeName,
    enforce::{Auto, ClaimSource, EnforcerSettings, Input, LimitScope, NewClaim, Output, Saved},
    plan::Mode,
};

const SERVICES: &[&str] = &["b", "c"];

/// The Enforcer after an agent that ended with these claims.
fn after(claims: &[(&str, NewClaim)], later: u64) -> (Rig, Arc<Cluster>) {
    let cluster = Cluster::parse(&text("abcdefghijkl", SERVICES));
    let mut rig = Rig::new(settings());
    rig.view(&cluster);
    for (node, claim) in claims {
        rig.raise(node, claim.clone(), true);
    }
    let next = Rig::over(rig.maps, rig.saved, settings(), rig.now.mono + later);
    (next, cluster)
}

fn compare(rig: &mut Rig) {
    let found = rig.found(true);
    rig.tell(found);
}

#[test]
fn what_is_pinned_is_renewed_until_the_first_view() {
    let (mut rig, cluster) =
        after(&[("b", claim(ClaimSource::Cli)), ("e", claim(ClaimSource::Hung))], 2 * SECOND);
    rig.run();
    assert_eq!(rig.did(), ["cut b", "cut e"]);
    assert_eq!(rig.lease, Some(rig.now.mono + 3 * SECOND));
    assert_eq!(rig.enforcer.deadline(), rig.now.mono + SECOND / 2);
    rig.pass(5 * SECOND);
    assert_eq!(rig.did().len(), 20);
    assert_eq!(rig.cut(), "b,e");
    compare(&mut rig);
    rig.view(&cluster);
    // No node is moved, exemptions stay, and both verdicts are renewed.
    assert_eq!(rig.cut(), "b,e");
    let did = rig.did();
    assert!(!did.iter().any(|did| did.contains("healthy") || did.contains("unexempt")), "{did:?}");
    assert_eq!(rig.maps.exempt.len(), 2);
    assert_eq!(rig.world().enforced.iter().count(), 2);
}

#[test]
fn an_automatic_claim_is_renewed_no_longer_than_it_was_saved() {
    let (mut rig, _) = after(&[("e", lasting(ClaimSource::Hung, 5))], SECOND);
    rig.run();
    rig.pass(4 * SECOND - 1);
    assert_eq!(rig.cut(), "e");
    rig.pass(1);
    assert_eq!(rig.cut(), "");
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "");
}

/// Meanwhile nobody drains nodes, or restores nodes that are not claimed any more.
#[test]
fn a_start_that_waits_holds_what_is_drained_for_a_minute() {
    let (mut rig, _) = after(&[("b", claim(ClaimSource::Cli))], SECOND);
    let begun = rig.now.mono;
    rig.run();
    rig.pass(120 * SECOND);
    assert_eq!(rig.cut(), "b");
    let last = rig.lease.unwrap() - begun;
    assert!((62 * SECOND..=63 * SECOND).contains(&last), "{last}");
}

/// A claim that is not carried out does not prolong the cut of the claim beside it that is.
#[test]
fn a_claim_that_enforces_nothing_renews_no_cut() {
    for (auto, limited) in [(Auto::Observe, false), (Auto::Off, false), (Auto::Enforce, true)] {
        let settings = EnforcerSettings { auto, ..settings() };
        let mut rig = Rig::with(&text("abcdefghijkl", SERVICES), settings.clone());
        rig.raise("b", claim(ClaimSource::Hung), false);
        rig.raise("b", lasting(ClaimSource::Cli, 5), false);
        if limited {
            rig.saved.withheld.push((LimitScope::Whole, rig.now.boot));
        }
        let mut rig = Rig::over(rig.maps, rig.saved, settings, rig.now.mono + 2 * SECOND);
        rig.run();
        rig.pass(3 * SECOND - 1);
        assert_eq!(rig.cut(), "b", "{auto:?}");
        rig.pass(1);
        assert_eq!(rig.cut(), "", "{auto:?}");
        rig.pass(SECOND);
        assert_eq!(rig.cut(), "", "{auto:?}");
    }
}

/// An agent that is to cut nothing renews no cut, and goes on observing what one before it observed.
#[test]
fn an_agent_that_observes_renews_what_only_observes() {
    let (rig, _) = after(&[("b", claim(ClaimSource::Cli))], SECOND);
    let observes = EnforcerSettings { mode: Mode::Observe, ..settings() };
    let mut rig = Rig::over(rig.maps, rig.saved, observes.clone(), rig.now.mono);
    rig.run();
    assert_eq!(rig.did(), [""; 0]);
    let mut rig = Rig::with(&text("abcdefghijkl", SERVICES), observes.clone());
    rig.raise("b", claim(ClaimSource::Hung), false);
    let mut rig = Rig::over(rig.maps, rig.saved, observes, rig.now.mono + SECOND);
    rig.run();
    assert_eq!(rig.did(), ["observe b"]);
}

/// No node is cut anew before the first view comes: a verdict that lapsed since the agent began is not brought back.
#[test]
fn a_claim_that_comes_after_a_verdict_lapsed_does_not_renew_it() {
    let (mut rig, _) = after(&[("e", lasting(ClaimSource::Hung, 5))], SECOND);
    rig.run();
    rig.pass(4 * SECOND);
    rig.raise("e", claim(ClaimSource::External("cloud".into())), false);
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "");
    // A claim that comes in time renews it.
    let (mut rig, _) = after(&[("e", lasting(ClaimSource::Hung, 5))], SECOND);
    rig.run();
    rig.pass(3 * SECOND);
    rig.raise("e", claim(ClaimSource::External("cloud".into())), false);
    rig.pass(3 * SECOND);
    assert_eq!(rig.cut(), "e");
}

#[test]
fn what_nobody_claims_lapses_and_is_taken_back() {
    let (rig, cluster) = after(&[("b", claim(ClaimSource::Cli))], SECOND);
    let mut rig = Rig::over(rig.maps, Saved::default(), settings(), rig.now.mono);
    rig.run();
    assert!(rig.did().is_empty());
    assert_eq!(rig.cut(), "b");
    compare(&mut rig);
    rig.view(&cluster);
    assert_eq!(rig.cut(), "");
    let did = rig.did();
    let at = |what: &str| did.iter().position(|did| did == what).unwrap();
    assert!(at("healthy b") < at("tables 1") && at("tables 1") < at("unexempt 10.1.1.2"), "{did:?}");
}

#[test]
fn a_verdict_that_lapsed_is_not_brought_back() {
    let (mut rig, _) = after(&[("b", claim(ClaimSource::Cli))], 3 * SECOND);
    rig.run();
    rig.pass(SECOND);
    assert!(rig.did().is_empty());
}

/// The file is read while verdicts are bridged.
#[test]
fn the_file_s_flags_are_renewed_as_they_were_saved_and_then_as_it_says() {
    let (mut rig, _) = after(&[("b", claim(ClaimSource::File)), ("c", claim(ClaimSource::File))], SECOND);
    rig.run();
    assert_eq!(rig.cut(), "b,c");
    let claims = vec![(NodeName::from("c"), claim(ClaimSource::File))];
    rig.tell(Input::Replace { source: ClaimSource::File, claims });
    rig.pass(4 * SECOND);
    assert_eq!(rig.cut(), "c");
}

#[test]
fn a_name_that_two_entries_bear_is_believed_of_neither() {
    let (rig, _) = after(&[("b", claim(ClaimSource::Cli))], SECOND);
    let mut maps: Maps = rig.maps;
    let entry = *maps.nodes.values().find(|entry| entry.name[0] == b'b').unwrap();
    maps.nodes.insert(90, NodeEntry { generation: 1, ..entry });
    let mut rig = Rig::over(maps, rig.saved, settings(), rig.now.mono);
    rig.run();
    assert!(rig.did().is_empty());
}

/// The maps are another agent's: no node is newly cut before the first tables are written, and no exemption is removed.
#[test]
fn nobody_is_cut_newly_before_the_first_tables() {
    let (mut rig, cluster) = after(&[("b", claim(ClaimSource::Cli))], SECOND);
    rig.run();
    compare(&mut rig);
    rig.writes_tables = false;
    let claims = vec![(NodeName::from("c"), claim(ClaimSource::File))];
    rig.tell(Input::Replace { source: ClaimSource::File, claims });
    rig.view(&cluster);
    rig.pass(2 * SECOND);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    rig.unflag("b").unwrap();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("", 2));
    rig.write_tables();
    rig.run();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("c", 2));
}

/// A failure while verdicts are bridged shows once they are renewed for good.
#[test]
fn a_renewal_that_fails_meanwhile_is_tried_again() {
    let (mut rig, cluster) = after(&[("b", claim(ClaimSource::Cli))], SECOND);
    rig.fates = Box::new(|output| if matches!(output, Output::Node(..)) { Fate::Failed } else { Fate::Done });
    rig.run();
    rig.pass(SECOND);
    rig.fates = Box::new(|_| Fate::Done);
    rig.view(&cluster);
    assert_eq!((rig.cut().as_str(), rig.world().failed.len()), ("b", 0));
}
