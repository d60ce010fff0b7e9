use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::cluster::{Change as ViewChange, NodeObject, ObjectName};

/// The API server's clock while the tests run. This node's own is an hour fast.
fn server_now() -> Timestamp {
    "2026-11-28T12:00:00Z".parse().expect("a time")
}

fn now() -> Now {
    Now { mono: 0, boot: Duration::from_secs(1_000), wall: server_now() + SignedDuration::from_hours(1) }
}

fn clock() -> ServerTime {
    let clock = super::super::date::ServerClock::default();
    // The middle of the second that the header names.
    let date = "Sat, 28 Nov 2026 12:00:00 GMT".parse().expect("a header");
    clock.note(&[(http::header::DATE, date)].into_iter().collect(), now());
    clock.read(now())
}

fn machines(all: &[(&str, &str)]) -> Machines {
    let node = |(name, uid): &(&str, &str)| NodeObject {
        uid: Some((*uid).into()),
        ..NodeObject::new(*name, Vec::new())
    };
    let mut machines = Machines::default();
    machines.follow(&[ViewChange::Nodes(all.iter().map(node).collect())]);
    machines
}

fn object(name: &str, spec: Value) -> wire::Flag {
    serde_json::from_value(json!({
        "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag",
        "metadata": {"name": name, "creationTimestamp": "2026-11-28T11:00:00Z"}, "spec": spec,
    }))
    .expect("a flag")
}

fn flag(name: &str, node: &str, uid: &str) -> Flag {
    read(&object(name, json!({"node": node, "uid": uid, "until": "2026-11-28T12:10:00Z"})))
}

fn read(object: &wire::Flag) -> Flag {
    object.read(&mut Texts::default()).expect("it can be read").expect("it means something")
}

/// What is told, in words.
fn news(flags: &mut Flags, machines: &Machines) -> Vec<String> {
    let word = |source: &ClaimSource| match source {
        ClaimSource::Object { name, forced, .. } => format!("{name}{}", if *forced { "!" } else { "" }),
        other => format!("{other:?}"),
    };
    let raised = |node: &NodeName, claim: &NewClaim| {
        assert_eq!(claim.until, None, "no end by this node's clock");
        let lasts = claim.lasts.expect("an end").as_secs();
        format!("{}: {} for {lasts} s", word(&claim.source), &**node)
    };
    let inputs = flags.news(machines, clock(), now());
    inputs
        .iter()
        .map(|input| match input {
            Input::Objects(all) => {
                let all: Vec<String> = all.iter().map(|(node, claim)| raised(node, claim)).collect();
                format!("all [{}]", all.join(", "))
            }
            Input::Claim { node, change: Change::Raise { claim, .. }, ticket: None } => raised(node, claim),
            Input::Claim { node, change: Change::Withdraw(source), ticket: None } => {
                format!("not {}: {}", word(source), &**node)
            }
            other => format!("{other:?}"),
        })
        .collect()
}

fn ignored(flags: &Flags) -> Vec<String> {
    flags.ignored().map(|(name, why)| format!("{name}: {why}")).collect()
}

#[test]
fn nothing_is_told_before_all_flags_and_members_are_known() {
    let mut flags = Flags::default();
    flags.take(FlagChange::One(flag("one", "a", "1")));
    assert!(news(&mut flags, &machines(&[("a", "1")])).is_empty(), "a single flag is no list");
    flags.take(FlagChange::All(vec![flag("one", "a", "1")]));
    assert!(news(&mut flags, &Machines::default()).is_empty(), "no list of members");
    // The end is by the API server's clock: 10 minutes from now, less the half of a second.
    assert_eq!(news(&mut flags, &machines(&[("a", "1")])), ["all [one: a for 599 s]"]);
    assert!(news(&mut flags, &machines(&[("a", "1")])).is_empty(), "nothing changed");
}

#[test]
fn each_change_is_told_alone() {
    let machines = machines(&[("a", "1"), ("b", "2")]);
    let mut flags = Flags::default();
    flags.take(FlagChange::All(vec![flag("one", "a", "1"), flag("two", "b", "2")]));
    news(&mut flags, &machines);
    flags.take(FlagChange::One(flag("three", "a", "1")));
    assert_eq!(news(&mut flags, &machines), ["three: a for 599 s"]);
    flags.take(FlagChange::Gone("one".into()));
    assert_eq!(news(&mut flags, &machines), ["not one: a"]);
    // What follows from `force` is another claim.
    flags.take(FlagChange::One(Flag { forced: true, ..flag("two", "b", "2") }));
    assert_eq!(news(&mut flags, &machines), ["two!: b for 599 s", "not two: b"]);
    let later = server_now() + SignedDuration::from_mins(20);
    flags.take(FlagChange::One(Flag { ends: later, ..flag("three", "a", "1") }));
    assert_eq!(news(&mut flags, &machines), ["three: a for 1199 s"]);
    // A list takes away what it lacks.
    flags.take(FlagChange::All(vec![flag("two", "b", "2")]));
    assert_eq!(news(&mut flags, &machines), ["two: b for 599 s", "not three: a", "not two!: b"]);
    flags.take(FlagChange::LeftOut("two".into(), "it cannot".to_owned()));
    assert_eq!(news(&mut flags, &machines), ["not two: b"]);
    assert_eq!(ignored(&flags), ["two: it cannot"]);
}

#[test]
fn a_flag_holds_for_its_machine_alone() {
    let mut flags = Flags::default();
    let all = ["a", "b", "c"].map(|node| flag(&format!("of-{node}"), node, "1"));
    flags.take(FlagChange::All(all.into()));
    let mut known = machines(&[("a", "1"), ("b", "2")]);
    assert_eq!(news(&mut flags, &known), ["all [of-a: a for 599 s]"]);
    assert_eq!(
        ignored(&flags),
        [
            "of-b: spec.uid: the flag is for UID 1, and `b` has UID 2",
            "of-c: spec.node: there is no NodeMember `c` with a UID",
        ]
    );
    assert_eq!((flags.newly_ignored().len(), flags.newly_ignored().len()), (2, 0), "each is said once");
    // The machine is replaced by another, and the other one by the one that is flagged.
    let node =
        |name: &str, uid: &str| NodeObject { uid: Some(uid.into()), ..NodeObject::new(name, Vec::new()) };
    known.follow(&[ViewChange::Node(node("a", "9")), ViewChange::Node(node("b", "1"))]);
    assert_eq!(news(&mut flags, &known), ["of-b: b for 599 s", "not of-a: a"]);
    known.follow(&[ViewChange::Gone(ObjectName::Node("b".into()))]);
    assert_eq!(news(&mut flags, &known), ["not of-b: b"]);
}

#[test]
fn a_flag_that_is_being_deleted_means_nothing() {
    let mut leaving = object("one", json!({"node": "a", "uid": "1", "until": "2026-11-28T12:10:00Z"}));
    assert!(leaving.read(&mut Texts::default()).expect("it can be read").is_some());
    // A finalizer keeps it.
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    assert_eq!(leaving.read(&mut Texts::default()), Ok(None));
}

#[test]
fn a_flag_that_is_over_means_nothing() {
    let mut flags = Flags::default();
    let over = Flag { ends: server_now(), ..flag("over", "a", "1") };
    flags.take(FlagChange::All(vec![over]));
    assert_eq!(news(&mut flags, &machines(&[("a", "1")])), ["all []"]);
    assert!(ignored(&flags).is_empty());
}

#[test]
fn an_end_is_at_most_a_day_after_the_creation_unless_the_flag_says_long() {
    let ends = |long| {
        let spec = json!({"node": "a", "uid": "1", "until": "2027-01-01T00:00:00Z", "long": long});
        read(&object("one", spec)).ends.to_string()
    };
    assert_eq!([ends(false), ends(true)], ["2026-11-29T11:00:00Z", "2027-01-01T00:00:00Z"]);
}

#[test]
fn all_fields_are_read_and_what_cannot_be_is_named() {
    let full = json!({
        "node": "a", "uid": "1", "until": "2026-11-28T12:10:00Z", "by": "ann", "reason": "disk", "cause": "external",
        "force": true,
    });
    let flag = read(&object("one", full.clone()));
    assert_eq!(
        (&*flag.by, &*flag.reason, flag.cause, flag.forced),
        ("ann", "disk", ClaimCause::External, true)
    );
    for (field, wrong) in [("until", json!("soon")), ("cause", json!("weather")), ("force", json!("yes"))] {
        let mut spec = full.clone();
        spec[field] = wrong;
        let (name, why) = object("one", spec).read(&mut Texts::default()).expect_err("it is wrong");
        assert_eq!(&*name, "one");
        assert!(why.starts_with("its spec cannot be read: "), "{why}");
    }
    let (_, why) =
        object("one", json!({"node": "a", "uid": "1"})).read(&mut Texts::default()).expect_err("no end");
    assert!(why.contains("missing field `until`"), "{why}");
}
