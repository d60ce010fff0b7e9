use serde_json::{Value, json};

use super::*;
use crate::report::{
    ChallengeRow, DrainRow, StaleRow,
    sample::{changed, two_flagged},
};

/// A change of a state in which all is well, the code that it brings, and what is said.
type Case = (Code, fn(&mut Value), &'static str);

fn uncovered(status: &mut Value) {
    status["covered"] = json!(3);
    status["uncovered"] = json!(2);
    status["uncovered_examples"] = json!([{
        "address": "192.0.2.78", "port": null, "protocol": null, "node": "node-d", "flagged": false, "interface": null,
        "uncovered": "leaves by out0, which is not attached"
    }]);
}

const UNCOVERED: &str = "2 backends are not covered, and not cut here; the first: 192.0.2.78 on node-d: leaves by out0, which is not attached";

fn old(status: &mut Value) {
    status["mode"] = json!("observe");
    status["cluster"]["age_seconds"] = json!(61);
    status["cluster"]["max_age_seconds"] = json!(60);
    status["cluster"]["is_old"] = json!(true);
}

fn replaced(status: &mut Value) {
    status["mode"] = json!("observe");
    status["replacement"] = json!({
        "product": "Cilium", "device": "cilium_host", "beside": "observes", "why": "Cilium forwards", "remedy": "-"
    });
}

/// Each code once.
const CASES: [Case; 33] = [
    (
        Code::NoView,
        |status| status["cluster"]["view"] = json!(0),
        "the cluster file has not yet said which nodes there are",
    ),
    (
        Code::NotAttached,
        |status| status["interfaces"][0]["tc"] = json!(null),
        "none of 1 devices is attached: eth0",
    ),
    (
        Code::NothingCovered,
        |status| {
            uncovered(status);
            status["covered"] = json!(0);
        },
        UNCOVERED,
    ),
    (
        Code::Lapsed,
        |status| status["dataplane"]["renewed_seconds_ago"] = json!(3.1),
        "verdicts were last renewed 3.1 s ago; the kernel ignores them after 3 s",
    ),
    (
        Code::RenewedLate,
        |status| status["dataplane"]["renewed_seconds_ago"] = json!(2.6),
        "verdicts were last renewed 2.6 s ago; the kernel ignores them after 3 s",
    ),
    (
        Code::RenewFailed,
        |status| status["dataplane"]["renew_error"] = json!("node-b: no room"),
        "node-b: no room",
    ),
    (Code::Replaced, replaced, "Cilium forwards"),
    (
        Code::ViewTooOld,
        old,
        "the view was read 1m 1s ago, and holds for 1m: nothing is cut, what would be is counted",
    ),
    (
        Code::SourceRefused,
        |status| status["cluster"]["error"] = json!("line 5"),
        "the cluster file was not taken, the last good view holds: line 5",
    ),
    (Code::SourceNotWatched, |status| status["cluster"]["watch"] = json!("no inotify"), "no inotify"),
    (
        Code::Conflicts,
        |status| {
            status["cluster"]["conflicts"] = json!(3);
            status["cluster"]["conflict_examples"] =
                json!([{"object": "node `b`", "field": "addresses[0]", "message": "is no address"}]);
        },
        "3 conflicts in the cluster file; what conflicts is left out and not cut; the first: node `b`, addresses[0]: is no address",
    ),
    (
        Code::EndpointsLeftOut,
        |status| {
            status["cluster"]["left_out"] = json!(2);
            status["cluster"]["left_out_examples"] =
                json!([{"node": "b", "address": "fd00::2", "why": "it may be b's own address"}]);
        },
        "2 endpoints are left out and not cut; the first: fd00::2 on b: it may be b's own address",
    ),
    (
        Code::DangerousFlags,
        |status| status["cluster"]["flags"] = json!(["2 of 3 nodes", "the own node"]),
        "2 of 3 nodes; the own node",
    ),
    (Code::FlagsFile, |status| status["flags_problem"] = json!("is damaged"), "is damaged"),
    (
        Code::ClaimsWithheld,
        |status| {
            status["withheld"] = json!([{
                "scope": {"kind": "zone", "name": "x"}, "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:05:00Z", "counted": 3, "allowed": 2
            }]);
        },
        "zone x: 3 nodes claimed, limit 2; automatic claims raised up to 2026-01-01T00:00:00Z are not enforced there, and count \
         towards the limit again from 2026-01-01T00:05:00Z",
    ),
    (
        Code::MapsNotWritten,
        |status| status["dataplane"]["error"] = json!("backends: E2BIG"),
        "backends: E2BIG",
    ),
    (
        Code::MapsNotCompared,
        |status| status["dataplane"]["compare_error"] = json!("os error 38"),
        "the maps could not be compared: os error 38",
    ),
    (
        Code::MapsChanged,
        |status| status["dataplane"]["differed"] = json!(4),
        "4 entries were changed by somebody else, and corrected since the agent began (see the log)",
    ),
    (
        Code::BackendsBeyondMaps,
        |status| {
            status["dataplane"]["left_out"] = json!(3);
            status["dataplane"]["left_out_first"] = json!(["10.9.1.1", "10.9.1.2"]);
        },
        "3 backends do not fit and pass: 10.9.1.1, 10.9.1.2, ... (room for 8)",
    ),
    (
        Code::PortsBeyondMaps,
        |status| status["dataplane"]["left_out_ports"] = json!(5),
        "5 host-network ports do not fit and pass",
    ),
    (Code::DeviceFails, |status| status["interfaces"][0]["error"] = json!("no room"), "eth0: no room"),
    (
        Code::VirtualFunctions,
        |status| status["interfaces"][0]["virtual_functions"] = json!(2),
        "what is sent by virtual functions is not cut here: eth0 has 2",
    ),
    (
        Code::RoutesUnknown,
        |status| status["routes_problem"] = json!("no buffer space"),
        "what devices cover is of before, since they could not be looked at: no buffer space",
    ),
    (Code::Uncovered, uncovered, UNCOVERED),
    (
        Code::ChallengeIncomplete,
        |status| {
            let row = ChallengeRow { problem: Some("ended early".to_owned()), ..ChallengeRow::default() };
            status["challenged"] = json!({"node-b": row, "node-c": row});
        },
        "node-b: ended early; node-c: ended early",
    ),
    (
        Code::StaleIncomplete,
        |status| {
            let row = StaleRow { problem: Some("no answer".to_owned()), ..StaleRow::default() };
            status["stale"] = json!({"node-b": row, "node-c": StaleRow::default()});
        },
        "node-b: no answer",
    ),
    (Code::DrainLimited, |status| status["ipvs"]["note"] = json!("a switch is 0"), "a switch is 0"),
    (Code::DrainFails, |status| status["ipvs"]["problems"] = json!(["one", "two"]), "one; two"),
    (
        Code::DestinationsFail,
        |status| {
            let row =
                DrainRow { problems: vec!["TCP 10.96.0.1:80: EPERM".to_owned()], ..DrainRow::default() };
            status["ipvs"]["nodes"] = json!({"node-b": row});
        },
        "node-b: TCP 10.96.0.1:80: EPERM",
    ),
    (
        Code::NoGuard,
        |status| status["ipvs"]["guard"] = json!({"kind": "external", "seen": false}),
        "the guard is external, and none is there: where this agent is killed, weights of 0 stay",
    ),
    (
        Code::LogLinesLost,
        |status| status["log_lines_lost"] = json!(8),
        "8 lines were lost since the agent began: they came faster than they could be written",
    ),
    (
        Code::SourceAway,
        |status| status["cluster"]["away"] = json!("the watch of Services: refused"),
        "the cluster file does not answer, the last good view holds: the watch of Services: refused",
    ),
    (
        Code::OrdersNotTaken,
        |status| {
            status["settings"] = json!({
                "found": true, "mode": "enforce", "automatic": "observe", "limit": "1/3", "pauses": [], "opted_out": [],
                "problem": "spec.limit: `x`", "away": "the watch of NodeFlags: refused",
                "ignored_flags": [{"name": "one", "problem": "its spec cannot be read: missing field `until`"}]
            });
        },
        "the newest NodefenceSettings cannot be read, the last good ones hold: spec.limit: `x`; \
         flags or settings are not known, what was known last holds: the watch of NodeFlags: refused; \
         NodeFlags that cannot be read: 1; the first: one: its spec cannot be read: missing field `until`",
    ),
];

/// A node that was replaced leaves its flag behind until the flag's end, at every agent.
#[test]
fn flags_of_machines_that_are_gone_and_endpoints_of_no_member_are_no_fault() {
    let health = Health::of(&changed(|status| {
        status["settings"] = json!({
            "found": true, "mode": "enforce", "automatic": "observe", "limit": "1/3", "pauses": [], "opted_out": [],
            "problem": null, "away": null, "ignored_flags": [],
            "flags_without_machine": [{"name": "one", "problem": "spec.node: there is no NodeMember `z` with a UID"}]
        });
        status["cluster"]["skipped"] = json!(1);
        status["cluster"]["skipped_examples"] = json!([{"object": "slice `s`", "field": "endpoints[0].node", "message": "`w` is not among the nodes"}]);
    }));
    assert_eq!((health.state, health.warnings), (State::Ok, Vec::new()));
}

#[test]
fn each_code_has_its_case_and_nothing_else_is_said() {
    assert_eq!(CASES.map(|(code, ..)| code), Code::ALL, "each code, in order");
    for (code, change, message) in CASES {
        let health = Health::of(&changed(change));
        let warning = Warning { code, message: message.to_owned(), standing: code.is_standing() };
        assert_eq!(health.warnings, [warning]);
        let state = match code.explanation().effect {
            Effect::Blind => State::Blind,
            _ if [Code::Replaced, Code::ViewTooOld].contains(&code) => State::Observe,
            Effect::Fails | Effect::Limits => State::Degraded,
            Effect::Past => State::Ok,
        };
        assert_eq!(health.state, state, "{code}");
        assert_eq!(health.has_findings(), code.is_standing(), "{code}");
        assert!(health.why.contains(code.name()), "{code}: {}", health.why);
    }
}

#[test]
fn a_view_that_an_earlier_agent_stored_is_told_of_with_its_age() {
    let told = |away: Value| {
        let health = Health::of(&changed(|status| {
            status["cluster"]["is_stored"] = json!(true);
            status["cluster"]["age_seconds"] = json!(90);
            status["cluster"]["away"] = away;
        }));
        assert_eq!(
            health.warnings.iter().map(|warning| warning.code).collect::<Vec<_>>(),
            [Code::SourceAway]
        );
        health.warnings[0].message.clone()
    };
    let holds = "the view that an earlier agent stored on the disk holds, of 1m 30s ago";
    assert_eq!(told(Value::Null), format!("the cluster file has not listed all objects yet, {holds}"));
    assert_eq!(told(json!("refused")), format!("the cluster file does not answer, {holds}: refused"));
}

#[test]
fn who_is_well_says_who_is_cut() {
    let health = Health::of(&changed(|_| ()));
    let expected = Health { state: State::Ok, why: "no node is cut".to_owned(), warnings: Vec::new() };
    assert_eq!(health, expected);
    assert_eq!(Health::of(&two_flagged()).why, "2 nodes are cut");
    // Nobody is cut where there is nothing to attach to.
    let alone = Health::of(&changed(|status| {
        status["interfaces"] = json!([]);
        status["covered"] = json!(0);
    }));
    assert_eq!(alone.state, State::Ok, "{}", alone.why);
}

/// A state in which nothing is cut is said before one in which a part is. The reasons are in the same line.
#[test]
fn the_first_word_is_what_must_be_known_first() {
    let told = |change: &dyn Fn(&mut Value)| {
        let health = Health::of(&changed(change));
        format!("{}: {}", health.state, health.why)
    };
    let guard = |status: &mut Value| status["ipvs"]["guard"] = json!({"kind": "external", "seen": false});
    let observe = |status: &mut Value| {
        status["mode"] = json!("observe");
        status["mode_set"] = json!({"started": "observe", "set": "observe", "changed": null});
    };
    let blind = |status: &mut Value| status["interfaces"][0]["tc"] = json!(null);
    assert_eq!(told(&guard), "DEGRADED: 1 warning: NF30");
    let two = |status: &mut Value| {
        guard(status);
        status["dataplane"]["left_out"] = json!(3);
        status["log_lines_lost"] = json!(8);
    };
    assert_eq!(told(&two), "DEGRADED: 2 warnings: NF19, NF30; since the agent began: NF31");
    let lost = |status: &mut Value| status["log_lines_lost"] = json!(8);
    assert_eq!(told(&lost), "OK: no node is cut; since the agent began: NF31");
    assert_eq!(told(&observe), "OBSERVE: nothing is cut, only counted: --mode observe");
    let both = |status: &mut Value| {
        observe(status);
        guard(status);
    };
    assert_eq!(told(&both), "OBSERVE: nothing is cut, only counted: --mode observe; 1 warning: NF30");
    let all = |status: &mut Value| {
        both(status);
        blind(status);
    };
    assert_eq!(
        told(&all),
        "BLIND: nothing is cut: no device is attached; the agent only observes (--mode observe); 2 warnings: NF02, NF30"
    );
    assert_eq!(told(&blind), "BLIND: nothing is cut: no device is attached; 1 warning: NF02");
}

#[test]
fn who_observes_says_why() {
    let why = |change: &dyn Fn(&mut Value)| Health::of(&changed(change)).why;
    assert_eq!(why(&replaced), "nothing is cut, only counted: Cilium is here; 1 warning: NF07");
    assert_eq!(why(&old), "nothing is cut, only counted: the view is too old; 1 warning: NF08");
    let set = |status: &mut Value| {
        status["mode"] = json!("observe");
        let by = json!({"by": "root (sudo by ann)", "at": "2026-01-01T00:00:00Z"});
        status["mode_set"] = json!({"started": "enforce", "set": "observe", "changed": by});
    };
    assert_eq!(
        why(&set),
        "nothing is cut, only counted: set to observe by root (sudo by ann) at 2026-01-01T00:00:00Z; started with enforce"
    );
    // An agent of an earlier version does not say.
    let before = |status: &mut Value| {
        status["mode"] = json!("observe");
        status["mode_set"] = json!(null);
    };
    assert_eq!(why(&before), "nothing is cut, only counted: --mode observe");
}

#[test]
fn no_device_at_all_is_blind_where_there_is_something_to_cut() {
    let health = Health::of(&changed(|status| {
        uncovered(status);
        status["covered"] = json!(0);
        status["interfaces"] = json!([]);
    }));
    let codes: Vec<Code> = health.warnings.iter().map(|warning| warning.code).collect();
    assert_eq!((health.state, codes), (State::Blind, vec![Code::NotAttached, Code::Uncovered]));
    // An agent of an earlier version does not say how many are covered.
    let before = Health::of(&changed(|status| {
        uncovered(status);
        status.as_object_mut().expect("an object").remove("covered");
    }));
    assert_eq!(before.state, State::Degraded);
}

#[test]
fn in_json_how_it_is_comes_first() {
    let report = StatusReport::from(changed(|status| status["log_lines_lost"] = json!(8)));
    let text = serde_json::to_string(&report).expect("text");
    let first = r#"{"state":"ok","why":"no node is cut; since the agent began: NF31","warnings":[{"code":"NF31","message":"8 lines "#;
    assert!(text.starts_with(first), "{text}");
    assert!(text.contains(r#""standing":false}],"version":"0.1.0""#), "{text}");
    assert_eq!(serde_json::from_str::<StatusReport>(&text).expect("a report"), report);
}
