use serde_json::{Value, json};

use super::*;
use crate::report::{DrainRow, sample};

/// The lines that `change` adds.
fn new_lines(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let text = |status: &Status| -> Vec<String> {
        lines(status).into_iter().map(|(name, value)| format!("{name:<16}{value}")).collect()
    };
    let before = text(&sample::changed(|_| ()));
    let now = text(&sample::changed(change));
    now.into_iter().filter(|line| !before.contains(line)).collect()
}

#[test]
fn nothing_is_refused_in_observe_mode() {
    let row = RescueRow { idle: Some("why".to_owned()), ..RescueRow::default() };
    assert!(rescue(&row, Mode::Observe).starts_with("none: why; "));
    assert!(rescue(&row, Mode::Enforce).starts_with("none, new connections are refused: why; "));
}

#[test]
fn what_a_bridge_switches_is_told() {
    let lines = |name: &str| new_lines(|status| status["interfaces"][0]["bridge"] = json!(name));
    assert_eq!(
        lines("br0"),
        [
            "                port of the bridge br0: what pods and guests on its ports send to a backend is switched there, and not cut"
        ]
    );
    assert_eq!(
        lines("eth0"),
        [
            "                a bridge: what pods and guests on its ports send to a backend is switched there, and not cut"
        ]
    );
}

#[test]
fn verdicts_that_are_not_renewed_name_their_warning() {
    for (ago, line) in [(2.6, "Renewed         2.6 s ago (NF05)"), (3.1, "Renewed         3.1 s ago (NF04)")]
    {
        assert_eq!(new_lines(|status| status["dataplane"]["renewed_seconds_ago"] = json!(ago)), [line]);
    }
}

#[test]
fn a_view_that_is_too_old_names_its_warning() {
    let lines = |is_old: bool| {
        new_lines(|status| {
            status["cluster"]["age_seconds"] = json!(61);
            status["cluster"]["max_age_seconds"] = json!(60);
            status["cluster"]["is_old"] = json!(is_old);
        })
    };
    assert_eq!(lines(false), ["View            number 1, read 1m 1s ago, holds for 1m"]);
    let old = "View            number 1, read 1m 1s ago, older than 1m (NF08)";
    assert_eq!(lines(true), [old]);
}

#[test]
fn what_is_more_than_its_examples_is_counted() {
    let lines = new_lines(|status| {
        status["cluster"]["conflicts"] = json!(3);
        status["cluster"]["conflict_examples"] =
            json!([{"object": "node `b`", "field": "addresses[0]", "message": "is no address"}]);
        status["cluster"]["skipped"] = json!(2);
        status["cluster"]["skipped_examples"] = json!([{"object": "slice `s`", "field": "endpoints[0].node", "message": "`w` is not among the nodes"}]);
        status["cluster"]["left_out"] = json!(2);
        status["cluster"]["left_out_examples"] =
            json!([{"node": "b", "address": "fd00::2", "why": "it may be b's own address"}]);
        status["uncovered"] = json!(4);
    });
    let expected = [
        "Conflicts       3 (NF11)",
        "                node `b`, addresses[0]: is no address",
        "                and 2 more",
        "Not cut         2 endpoints without a member, or in two slices",
        "                slice `s`, endpoints[0].node: `w` is not among the nodes",
        "                and 1 more",
        "Left out        2 endpoints (NF12)",
        "                fd00::2 on b: it may be b's own address",
        "                and 1 more",
        "Not covered     4 backends",
        "                and 4 more: see `nodefence backends`",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_no_person_claimed_is_told_with_how_it_is_treated() {
    let lines = new_lines(|status| {
        status["flagged"] = json!([{
            "name": "node-b", "address": "10.0.0.2", "addresses": ["10.0.0.2"], "zone": null, "pool": null, "index": 1,
            "generation": 1, "backends": 1, "own": false, "action": "pass", "exempt": 0, "flag": null,
            "claims": [{
                "source": "hung", "cause": "hung", "by": "", "reason": "it owes answers", "evidence": null,
                "since": "2026-01-01T00:00:00Z", "until": null, "standing": "observed", "withheld_by": []
            }]
        }]);
    });
    assert!(
        lines.iter().any(|line| line.starts_with("Automatic       observe, at most 1/3 of all nodes")),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|line| line == "Claimed         node-b (pass): hung (observed): it owes answers"),
        "{lines:?}"
    );
}

#[test]
fn what_was_deleted_is_counted_by_kind() {
    let lines = new_lines(|status| {
        let row = StaleRow {
            nodes: 2,
            affinity: 3,
            affinity_unknown: 4,
            datagrams: 5,
            tcp: 6,
            by_filter: 7,
            refused: 8,
            problem: Some("no answer".to_owned()),
        };
        status["stale"] = json!({"node-b": row});
    });
    let expected = [
        "Stale           node-b: 5 conntrack entries of UDP and SCTP, 6 of TCP, 7 requests by filter, 3 affinity tables, 4 sets of unknown Services left alone, 8 refused by the kernel, of 2 nodes together",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_is_drained_from_ipvs_and_what_would_be() {
    let row =
        DrainRow { drained: 2, waiting: 3, planned: 0, exempt_services: 5, failed: 6, ..DrainRow::default() };
    let observed = DrainRow { planned: 4, ..row.clone() };
    let failed = DrainRow { problems: vec!["no answer".to_owned()], ..row };
    let lines = new_lines(|status| {
        status["ipvs"]["nodes"] = json!({"node-b": observed, "node-c": failed});
    });
    let expected = [
        "IPVS            node-b: would drain 4 destinations, leaves 5 services exempt",
        "IPVS            node-c: 2 destinations drained, 3 with connections left, 5 services exempt, 6 failed",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn who_guards_what_is_drained_is_told() {
    let lines = |guard: Value| new_lines(|status| status["ipvs"]["guard"] = guard);
    let loaded = new_lines(|status| status["ipvs"]["loaded"] = json!(true));
    assert_eq!(loaded, ["IPVS guard      child: the agent starts it once something is drained"]);
    let seen = lines(json!({"kind": "external", "seen": true}));
    assert_eq!(seen, ["IPVS guard      external, and it is there"]);
    assert_eq!(lines(json!({"kind": "external", "seen": false})), [""; 0], "a warning says so");
}
