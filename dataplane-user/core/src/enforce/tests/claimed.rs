//! Claims: which there are, when they end, and what several claims on one node decide together.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    model::Cluster,
    rig::{BEGIN, Rig, SECOND, claim, lasting, now, settings},
    texts::text,
};
use crate::{
    cluster::NodeName,
    enforce::{
        Change, Claim, ClaimSource, Danger, EnforcerSettings, Event, Input, NewClaim, Now, Share, Standing,
        claim::AUTOMATIC_LASTS,
    },
};

fn wide() -> EnforcerSettings {
    EnforcerSettings { limit: Share { part: 1, of: 1 }, ..settings() }
}

fn rig() -> Rig {
    Rig::with(&text("abcdef", &[]), wide())
}

fn file(nodes: &[(&str, Option<Timestamp>)]) -> Input {
    let claim = |until| NewClaim { until, ..claim(ClaimSource::File) };
    let claims = nodes.iter().map(|(node, until)| (NodeName::from(*node), claim(*until)));
    Input::Replace { source: ClaimSource::File, claims: claims.collect() }
}

fn wall(now: Now, seconds: i64) -> Timestamp {
    Timestamp::from_second(now.wall.as_second() + seconds).unwrap()
}

#[test]
fn a_node_is_cut_for_the_longest_of_its_claims() {
    let mut rig = rig();
    rig.raise("b", lasting(ClaimSource::Cli, 2), false);
    assert_eq!(rig.entry("b").until, rig.now.mono + 2 * SECOND);
    rig.raise("b", lasting(ClaimSource::External("cloud".into()), 5), false);
    assert_eq!(rig.entry("b").until, rig.now.mono + 3 * SECOND);
    let claims = rig.world().claims.of("b");
    assert_eq!(claims.len(), 2);
    assert!(claims.iter().all(|shown| shown.standing == Standing::Enforced));
    rig.pass(2 * SECOND);
    assert_eq!((rig.cut().as_str(), rig.world().claims.of("b").len()), ("b", 1));
    assert!(rig.events.contains(&Event::Over("b".into(), ClaimSource::Cli)));
    assert_eq!(rig.entry("b").until, rig.now.mono + 3 * SECOND);
    rig.pass(3 * SECOND - 1);
    assert_eq!(rig.cut(), "b");
    rig.pass(1);
    assert_eq!(rig.cut(), "");
    assert!(rig.world().claims.nodes().next().is_none());
}

/// A claim that is withdrawn early must not leave a verdict that outlives the remaining claims.
#[test]
fn a_verdict_never_outlives_an_automatic_claim() {
    let mut rig = rig();
    rig.raise("b", lasting(ClaimSource::Hung, 1), false);
    rig.flag("b").unwrap();
    assert_eq!(rig.entry("b").until, rig.now.mono + 3 * SECOND);
    rig.unflag("b").unwrap();
    assert_eq!(rig.entry("b").until, rig.now.mono + SECOND);
}

/// A verdict is written again at once where the written one ends before the next renewal.
#[test]
fn a_claim_that_is_renewed_in_time_leaves_no_gap() {
    let mut rig = rig();
    rig.raise("b", lasting(ClaimSource::Hung, 2), false);
    for _ in 0..20 {
        rig.pass(SECOND * 19 / 10);
        assert_eq!(rig.cut(), "b");
        rig.tell(Input::Claim {
            node: "b".into(),
            change: Change::Raise { claim: lasting(ClaimSource::Hung, 2), force: false },
            ticket: None,
        });
    }
    assert!(!rig.did().contains(&"healthy b".to_owned()));
    // The claim was raised once.
    let raised = rig.world().claims.of("b")[0].claim.raised;
    assert_eq!(raised, now(BEGIN).boot);
}

#[test]
fn an_automatic_claim_lapses_unless_it_is_renewed() {
    let mut rig = rig();
    rig.raise("b", claim(ClaimSource::Unreachable), false);
    rig.pass(AUTOMATIC_LASTS.as_nanos() as u64 - 1);
    assert_eq!(rig.cut(), "b");
    rig.pass(1);
    assert_eq!(rig.cut(), "");
    // An operator's claim does not end.
    rig.flag("b").unwrap();
    rig.pass(1_000 * SECOND);
    assert_eq!(rig.cut(), "b");
}

#[test]
fn a_claim_on_an_unknown_node_is_shown_and_holds_once_the_node_comes() {
    let mut rig = rig();
    rig.raise("x", claim(ClaimSource::Hung), false);
    assert_eq!(rig.world().claims.of("x")[0].standing, Standing::Unknown);
    rig.view(&Cluster::parse(&text("abcdefx", &[])));
    assert_eq!(rig.cut(), "x");
}

#[test]
fn the_file_s_flags_come_and_go_with_it() {
    let mut rig = rig();
    rig.tell(file(&[("b", None), ("c", None)]));
    assert_eq!(rig.cut(), "b,c");
    let came = Event::FileFlags { came: vec!["b".into(), "c".into()], went: Vec::new() };
    assert!(rig.events.contains(&came), "{:?}", rig.events);
    rig.raise("b", claim(ClaimSource::Cli), false);
    rig.tell(file(&[("c", None)]));
    assert_eq!(rig.cut(), "b,c");
    rig.unflag("b").unwrap();
    rig.tell(file(&[]));
    assert_eq!(rig.cut(), "");
    let went = Event::FileFlags { came: Vec::new(), went: vec!["c".into()] };
    assert!(rig.events.contains(&went), "{:?}", rig.events);
}

#[test]
fn a_step_of_the_wall_clock_cannot_prolong_a_flag_of_the_file() {
    let mut rig = rig();
    let until = wall(rig.now, 60);
    rig.tell(file(&[("b", Some(until))]));
    rig.pass(30 * SECOND);
    // Set back by an hour, and the file is read again: the minute that was meant is over all the same.
    let back = |mono: u64| Now { wall: wall(now(mono), -3_600), ..now(mono) };
    rig.now = back(rig.now.mono);
    rig.tell(file(&[("b", Some(until))]));
    rig.now = back(BEGIN + 60 * SECOND - 1);
    rig.tell(Input::Tick);
    assert_eq!(rig.cut(), "b");
    rig.now = back(BEGIN + 60 * SECOND);
    rig.tell(Input::Tick);
    assert_eq!(rig.cut(), "");
    rig.tell(file(&[("b", Some(until))]));
    assert_eq!(rig.cut(), "");
    assert_eq!(rig.world().claims.of("b")[0].standing, Standing::Over);
    // Another end is another flag.
    rig.tell(file(&[("b", Some(wall(rig.now, 60)))]));
    assert_eq!(rig.cut(), "b");
    // Put forward: the time that was named has come.
    rig.now = Now { wall: wall(rig.now, 100), ..rig.now };
    rig.tell(Input::Renew);
    assert_eq!(rig.cut(), "");
}

#[test]
fn what_is_dangerous_about_the_file_s_flags_is_said_once() {
    let mut rig = rig();
    rig.tell(file(&[("b", None), ("c", None)]));
    assert_eq!(rig.world().dangers.len(), 0);
    let over = wall(rig.now, -5);
    rig.tell(file(&[("a", None), ("b", None), ("c", None), ("d", Some(over))]));
    let dangers =
        [Danger::TooMany(3, 6), Danger::OwnNode("a".into()), Danger::Over(vec![NodeName::from("d")])];
    assert_eq!(*rig.world().dangers, dangers);
    let said = |rig: &Rig| rig.events.iter().filter(|event| matches!(event, Event::Danger(_))).count();
    assert_eq!(said(&rig), 3);
    rig.pass(5 * SECOND);
    assert_eq!(said(&rig), 3);
    assert_eq!(rig.cut(), "a,b,c");
}

#[test]
fn a_file_that_comes_before_its_view_is_taken() {
    let mut rig = Rig::new(settings());
    rig.tell(file(&[("b", None)]));
    rig.view(&Cluster::parse(&text("abcdef", &[])));
    assert_eq!(rig.cut(), "b");
}

#[test]
fn an_end_is_the_sooner_of_both_clocks() {
    let at = now(BEGIN);
    let new = NewClaim { until: Some(wall(at, 50)), ..lasting(ClaimSource::Cli, 60) };
    let claim = Claim::raise(new, None, at);
    assert_eq!(claim.remaining(at), Some(Duration::from_secs(50)));
    assert!(!claim.ended(now(BEGIN + 50 * SECOND - 1)) && claim.ended(now(BEGIN + 50 * SECOND)));
}
