//! In which order things are done.

use nodefence_common::Verdict;

use super::{
    model::Cluster,
    rig::{Fate, Rig, claim, settings},
    texts::text,
};
use crate::enforce::{Change, ClaimSource, Input, Output};

#[test]
fn an_exemption_comes_before_the_verdict_and_goes_after_it() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    assert_eq!(rig.did(), ["publish b", "exempt 10.1.1.2:80", "exempt 10.1.1.2", "cut b"]);
    rig.unflag("b").unwrap();
    assert_eq!(rig.did(), ["healthy b", "publish ", "unexempt 10.1.1.2", "unexempt 10.1.1.2:80"]);
}

#[test]
fn only_what_has_nothing_else_is_exempt() {
    let mut rig = Rig::with(&text("abcdef", &["bc", "bd"]), settings());
    rig.flag("b").unwrap();
    assert_eq!(rig.did(), ["publish b", "cut b"]);
    rig.flag("c").unwrap();
    let exempt = ["exempt 10.1.1.3:80", "exempt 10.1.1.3", "exempt 10.1.1.2:80", "exempt 10.1.1.2"];
    let mut wanted = vec!["publish b,c"];
    wanted.extend(exempt);
    wanted.push("cut c");
    assert_eq!(rig.did(), wanted);
    assert_eq!(rig.world().exempt.len(), 2);
    // With one of the two gone, the other is cut again, and its clients are to be challenged once more.
    let since = rig.world().enforced.iter().nth(1).unwrap().challenge_since;
    rig.pass(10);
    rig.did();
    rig.unflag("b").unwrap();
    assert_eq!(rig.did()[..2], ["healthy b", "publish c"]);
    assert!(rig.maps.exempt.is_empty());
    assert!(rig.world().enforced.iter().next().unwrap().challenge_since > since);
}

/// Two Services at the same address of b: the first has no other endpoint, the second is on these nodes, at this port.
fn two_at_b(on: &str, port: u16) -> String {
    let endpoint = |node: char| format!("{{address: 10.1.1.{}, node: {node}}}", node as u8 - b'`');
    let endpoints: Vec<String> = on.chars().map(endpoint).collect();
    let second = format!(
        "- {{name: x/s2, clusterIPs: [10.96.0.2], ports: [{{port: 90, targetPort: {port}}}], endpoints: [{}]}}\n",
        endpoints.join(", ")
    );
    text("abcdef", &["b"]) + &second
}

#[test]
fn what_is_cut_at_an_address_that_passes_lies_there_before_it_and_longer() {
    let mut rig = Rig::with(&two_at_b("bc", 81), settings());
    rig.flag("b").unwrap();
    let exempt = ["except 10.1.1.2:81", "exempt 10.1.1.2:80", "exempt 10.1.1.2"];
    assert_eq!(rig.did(), [&["publish b"][..], &exempt, &["cut b"]].concat());
    let since = |rig: &Rig| rig.world().enforced.iter().next().unwrap().challenge_since;
    let before = since(&rig);
    rig.pass(10);
    rig.did();
    // Now the second has no other endpoint either, and then it has one again.
    rig.flag("c").unwrap();
    let exempt = ["exempt 10.1.1.3:81", "exempt 10.1.1.3", "exempt 10.1.1.2:81"];
    assert_eq!(rig.did(), [&["publish b,c"][..], &exempt, &["cut c"]].concat());
    assert_eq!(since(&rig), before);
    rig.unflag("c").unwrap();
    let did = [
        "healthy c",
        "publish b",
        "except 10.1.1.2:81",
        "unexempt 10.1.1.3",
        "unexempt 10.1.1.3:81",
        "publish b",
    ];
    assert_eq!(rig.did(), did);
    // Its clients passed meanwhile.
    assert!(since(&rig) > before);
    rig.unflag("b").unwrap();
    let gone = ["unexempt 10.1.1.2", "unexempt 10.1.1.2:80", "unexempt 10.1.1.2:81"];
    assert_eq!(rig.did(), [&["healthy b", "publish "][..], &gone].concat());
}

/// Answers may come to a port that no Service names any more. A port that a Service newly names may have been such a port in the view before.
#[test]
fn what_is_cut_at_an_address_that_passes_follows_the_view() {
    let mut rig = Rig::with(&two_at_b("bc", 81), settings());
    rig.flag("b").unwrap();
    let since = rig.world().enforced.iter().next().unwrap().challenge_since;
    rig.pass(10);
    rig.did();
    rig.view(&Cluster::parse(&two_at_b("bc", 82)));
    let did =
        ["publish b", "unexempt 10.1.1.2:81", "tables 2", "publish b", "except 10.1.1.2:82", "publish b"];
    assert_eq!(rig.did(), did);
    assert!(rig.world().enforced.iter().next().unwrap().challenge_since > since);
}

#[test]
fn a_new_owner_is_written_healthy_before_the_tables() {
    let mut rig = Rig::new(settings());
    rig.view(&Cluster::parse(&text("ab", &["b"])));
    assert_eq!(rig.did(), ["healthy a", "healthy b", "publish ", "tables 1", "publish "]);
    assert_eq!(rig.maps.backends.len(), 3);
    rig.view(&Cluster::parse(&text("abc", &["b"])));
    assert_eq!(rig.did(), ["healthy c", "publish ", "tables 2", "publish "]);
}

/// V4: a place that had another owner bears no verdict before the tables are written that know the new one.
#[test]
fn a_new_owner_bears_no_verdict_before_the_tables_are_written() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.flag("b").unwrap();
    let place = rig.slots.get("b").unwrap();
    rig.writes_tables = false;
    rig.did();
    rig.tell(Input::Claim {
        node: "g".into(),
        change: Change::Raise { claim: claim(ClaimSource::Hung), force: false },
        ticket: None,
    });
    rig.view(&Cluster::parse(&text("acdefg", &[])));
    let taken = rig.slots.get("g").unwrap();
    assert_eq!((taken.index, taken.generation), (place.index, place.generation + 1));
    assert_eq!(rig.did(), ["publish b", "healthy g", "publish ", "tables 2"]);
    rig.pass(3_000_000_000);
    assert_eq!((rig.cut(), rig.entry("g").verdict), (String::new(), Verdict::Healthy as u32));
    rig.fail_tables(1);
    rig.run();
    assert_eq!(rig.cut(), "");
    rig.pass(1_000_000_000);
    rig.write_tables();
    rig.run();
    assert_eq!(rig.cut(), "g");
}

/// V1: a flagged node that leaves the view goes without its verdict, before its backends and its exemptions do.
#[test]
fn a_node_that_leaves_is_released_before_the_tables() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    rig.did();
    rig.view(&Cluster::parse(&text("acdef", &["c"])));
    let wanted =
        ["healthy b", "publish ", "unexempt 10.1.1.2", "unexempt 10.1.1.2:80", "tables 2", "publish "];
    let did = rig.did();
    assert_eq!(did[..6], wanted);
    // The view still has the flag, in case the node comes back.
    assert_eq!(did[6..], ["unused 1"]);
    assert!(!rig.world().claims.of("b").is_empty());
    rig.view(&Cluster::parse(&text("abcdef", &["b"])));
    assert_eq!(rig.cut(), "b");
}

/// V1, where the verdict cannot be taken back: the node counts as cut until it lapses.
#[test]
fn a_node_that_leaves_and_cannot_be_released_keeps_its_exemptions() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    let index = rig.slots.get("b").unwrap().index;
    rig.fates = Box::new(move |output| match output {
        Output::Node(at, _) if *at == index => Fate::Failed,
        _ => Fate::Done,
    });
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("acdef", &["c"])));
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    assert_eq!(rig.world().lapsing.iter().next().unwrap().slot.index, index);
    rig.pass(2_900_000_000);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    rig.pass(200_000_000);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("", 0));
    assert!(rig.world().lapsing.iter().next().is_none());
}

/// V3: exemptions that only the old view needs stay until the new one's tables are written. Those that the new view needs are there before.
#[test]
fn both_views_exemptions_lie_there_while_tables_are_written() {
    let mut rig = Rig::with(&text("abcdef", &["b", "bc"]), settings());
    rig.flag("b").unwrap();
    let since = rig.world().enforced.iter().next().unwrap().challenge_since;
    rig.did();
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("abcdef", &["bc", "b"])));
    assert_eq!(rig.did(), ["publish b", "exempt 10.1.2.2:80", "exempt 10.1.2.2", "tables 2"]);
    rig.fail_tables(1);
    rig.run();
    assert_eq!(rig.maps.exempt.len(), 4);
    rig.pass(1_000_000_000);
    rig.did();
    rig.write_tables();
    rig.run();
    assert_eq!(rig.did(), ["publish b", "unexempt 10.1.1.2", "unexempt 10.1.1.2:80", "publish b"]);
    // Clients of a port that is exempt no more are challenged.
    assert!(rig.world().enforced.iter().next().unwrap().challenge_since > since);
}

/// V5, V6: there is one writer, and nothing is exempt for a node that is only observed.
#[test]
fn exemptions_follow_what_is_enforced() {
    let observe = crate::enforce::EnforcerSettings { mode: crate::plan::Mode::Observe, ..settings() };
    let mut rig = Rig::with(&text("abcdef", &["b"]), observe);
    rig.flag("b").unwrap();
    assert_eq!(rig.did(), ["publish ", "observe b"]);
    let world = rig.world();
    assert_eq!((world.would_exempt, world.exempt.len(), world.observed.iter().count()), (1, 0, 1));
    rig.unflag("b").unwrap();
    assert_eq!(rig.did(), ["healthy b", "publish "]);
    assert_eq!(rig.world().would_exempt, 0);
}

#[test]
fn after_a_failed_write_all_entries_are_compared() {
    let mut rig = Rig::new(settings());
    rig.writes_tables = false;
    let base = |rig: &Rig| rig.tables.as_ref().unwrap().base;
    let first = rig.view(&Cluster::parse(&text("ab", &[])));
    assert_eq!(base(&rig), None);
    rig.write_tables();
    rig.run();
    rig.view(&Cluster::parse(&text("abc", &[])));
    assert_eq!(base(&rig), Some(first));
    rig.fail_tables(1);
    rig.run();
    assert!(rig.tables.is_none() && rig.world().tables_error.is_some());
    rig.pass(999_999_999);
    assert!(rig.tables.is_none());
    rig.pass(1);
    assert_eq!(base(&rig), None);
    rig.write_tables();
    rig.run();
    assert_eq!(rig.world().tables_error, None);
}
