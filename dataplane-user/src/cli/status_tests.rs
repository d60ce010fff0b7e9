use serde_json::{Value, json};

use super::*;
use crate::report::ChallengeRow;

/// Of an agent of two nodes where all is well.
fn well() -> Value {
    json!({
        "version": "0.1.0", "pid": 7, "started": "2026-01-01T00:00:00Z", "node": "node-a",
        "mode": "enforce", "mode_set": {"started": "enforce", "set": "enforce", "changed": null}, "replacement": null, "answer": "refuse", "auto": "observe", "auto_limit": "1/3", "withheld": [],
        "cluster": {
            "source": "the cluster file", "file": "/c.yaml", "loaded": "2026-01-01T00:00:00Z", "age_seconds": 2,
            "max_age_seconds": null, "is_old": false,
            "nodes": 2, "backends": 1, "services": 0, "endpoints": 0, "error": null, "conflicts": 0,
            "conflict_examples": [], "left_out": 0, "left_out_examples": [], "flags": [], "watch": null, "view": 1,
            "reading": {"times": 0, "processor_micros": 0, "ended_ns": 0}
        },
        "flagged": [], "flagged_unknown": {}, "claimed_unknown": {}, "exempt": 0, "exempt_examples": [], "would_exempt": 0,
        "rescue": {"idle": null, "own": "not tried yet", "rescued": 0, "tries": 0, "beyond_budget": 0, "not": {}},
        "flags_problem": null,
        "dataplane": {
            "pin_dir": "/sys/fs/bpf/nodefence/v3", "max_backends": 8, "left_out": 0, "left_out_ports": 0,
            "left_out_first": [], "error": null, "compared": 0, "compared_last": null, "differed": 0,
            "compare_error": null, "renewed_seconds_ago": 0.5, "renew_error": null
        },
        "interfaces": [{
            "name": "eth0", "ifindex": 3, "link_layer": "l2", "tc": "tcx", "xdp": "off", "programs_ahead": [],
            "virtual_functions": 0, "bridge": null, "error": null
        }],
        "routes_problem": null, "uncovered": 0, "uncovered_examples": [],
        "probe": {
            "conntrack": {"found": {"syn_ack": true, "far_past": true, "liberal": true}},
            "ipvs_translates": {"not_needed": "no IPVS"},
            "deletes_by_filter": {"found": {"v4": true, "v6": true}}, "milliseconds": 1
        },
        "probe_text": "as it is", "cannot_challenge": [], "challenged": {}, "proxy": {"mode": null, "why": "--proxy says so"},
        "stale": {}, "neighbours": [],
        "ipvs": {"loaded": false, "note": null, "problems": [], "changes": 0, "guard": {"kind": "child"}, "nodes": {}},
        "conntrack": {"zone": 0, "listed_v4": 0, "listed_v6": 0},
        "log_lines_lost": 0, "log_level": {"started": "info", "set": "info", "changed": null}
    })
}

/// The lines that are there once `change` is made, and not before.
fn new_lines(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let text = |of: Value| status(&serde_json::from_value(of).expect("a status"));
    let before = text(well());
    let mut changed = well();
    change(&mut changed);
    let now = text(changed);
    now.lines().filter(|line| !before.lines().any(|was| was == *line)).map(str::to_owned).collect()
}

#[test]
fn what_forwards_in_kube_proxy_s_place_stands_below_the_mode() {
    let lines = new_lines(|status| {
        status["mode"] = json!("observe");
        status["replacement"] = json!({"product": "Cilium", "device": "cilium_host", "beside": "observes", "why": "it is there", "remedy": "-"});
    });
    let [mode, why] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (mode.as_str(), why.trim_start()),
        ("Mode            observe, answer refuse", "problem: it is there")
    );
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
fn devices_with_virtual_functions_are_a_problem() {
    let lines = new_lines(|status| status["interfaces"][0]["virtual_functions"] = json!(2));
    let line = "                problem: has 2 virtual functions; what is sent by these is not cut here";
    assert_eq!(lines, [line]);
}

#[test]
fn verdicts_that_are_not_renewed_are_a_problem() {
    let lines = new_lines(|status| {
        status["dataplane"]["renewed_seconds_ago"] = json!(2.6);
        status["dataplane"]["renew_error"] = json!("node-b: no room");
    });
    let late = "Renewed         2.6 s ago (problem: verdicts lapse 3 s after it)";
    assert_eq!(lines, [late, "                problem: node-b: no room"]);
}

#[test]
fn a_view_that_is_too_old_is_a_problem() {
    let lines = |is_old: bool| {
        new_lines(|status| {
            status["cluster"]["age_seconds"] = json!(61);
            status["cluster"]["max_age_seconds"] = json!(60);
            status["cluster"]["is_old"] = json!(is_old);
        })
    };
    assert_eq!(lines(false), ["View            number 1, read 1m 1s ago, holds for 1m"]);
    let old = "View            number 1, read 1m 1s ago (problem: older than 1m: nothing is cut, what would be is counted)";
    assert_eq!(lines(true), [old]);
}

#[test]
fn routes_that_could_not_be_looked_at_are_a_problem() {
    let lines = new_lines(|status| status["routes_problem"] = json!("no buffer space"));
    let line = "Routes          problem: what devices cover is of before, since they could not be looked at: no buffer space";
    assert_eq!(lines, [line]);
}

#[test]
fn what_is_more_than_its_examples_is_counted() {
    let lines = new_lines(|status| {
        status["cluster"]["conflicts"] = json!(3);
        status["cluster"]["conflict_examples"] =
            json!([{"object": "node `b`", "field": "addresses[0]", "message": "is no address"}]);
        status["cluster"]["left_out"] = json!(2);
        status["cluster"]["left_out_examples"] =
            json!([{"node": "b", "address": "fd00::2", "why": "it may be b's own address"}]);
        status["uncovered"] = json!(4);
    });
    let expected = [
        "Conflicts       problem: 3 conflicts in the cluster file; what conflicts is left out and not cut",
        "                node `b`, addresses[0]: is no address",
        "                and 2 more",
        "Left out        problem: 2 endpoints, which are not cut",
        "                fd00::2 on b: it may be b's own address",
        "                and 1 more",
        "Not covered     problem: 4 backends, whose traffic is not cut here",
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
        "Stale           node-b: 5 conntrack entries of UDP and SCTP, 6 of TCP, 7 requests by filter, 3 sets or lists of affinity, 4 sets of unknown Services left alone, 8 refused by the kernel, of 2 nodes together",
        "                problem: no answer",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_is_drained_from_ipvs_and_what_would_be() {
    let row =
        DrainRow { taken: 2, waiting: 3, planned: 0, exempt_services: 5, failed: 6, ..DrainRow::default() };
    let observed = DrainRow { planned: 4, ..row.clone() };
    let failed = DrainRow { problems: vec!["no answer".to_owned()], ..row };
    let lines = new_lines(|status| {
        status["ipvs"]["nodes"] = json!({"node-b": observed, "node-c": failed});
    });
    let expected = [
        "IPVS            node-b: would drain 4 destinations, leaves 5 services exempt",
        "IPVS            node-c: 2 destinations drained, 3 with connections left, 5 services exempt, 6 failed",
        "                problem: no answer",
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
    let none = "IPVS guard      problem: external, and none is there: where this agent is killed, weights of 0 stay; start `nodefence guard`";
    assert_eq!(lines(json!({"kind": "external", "seen": false})), [none]);
}

#[test]
fn what_is_wrong_with_a_source_a_device_and_a_round_is_told() {
    let lines = new_lines(|status| {
        status["cluster"]["error"] = json!("one");
        status["cluster"]["watch"] = json!("two");
        status["cluster"]["flags"] = json!(["three"]);
        status["flags_problem"] = json!("four");
        status["interfaces"][0]["error"] = json!("five");
        let challenged =
            ChallengeRow { challenged: 1, problem: Some("six".to_owned()), ..ChallengeRow::default() };
        status["challenged"] = json!({"node-b": challenged});
        status["ipvs"]["note"] = json!("seven");
        status["log_lines_lost"] = json!(8);
    });
    let problems: Vec<&str> =
        lines.iter().filter_map(|line| line.split_once("problem: ")).map(|(_, why)| why).collect();
    let lost =
        "8 lines were lost: they came faster than they could be written since the agent began (see the log)";
    assert_eq!(problems, ["one", "two", "three", "four", "five", "six", "seven", lost], "{lines:#?}");
}

#[test]
fn a_problem_is_a_finding() {
    let exit = |change: &dyn Fn(&mut Value)| {
        let mut changed = well();
        change(&mut changed);
        check(&serde_json::from_value(changed).expect("a status"))
    };
    assert_eq!(exit(&|_| {}), Exit::Ok);
    let problems: [&dyn Fn(&mut Value); 4] = [
        &|status| status["flags_problem"] = json!("is damaged"),
        &|status| status["dataplane"]["renewed_seconds_ago"] = json!(2.6),
        &|status| {
            status["cluster"]["max_age_seconds"] = json!(60);
            status["cluster"]["is_old"] = json!(true);
        },
        &|status| status["ipvs"]["guard"] = json!({"kind": "external", "seen": false}),
    ];
    for problem in problems {
        assert_eq!(exit(problem), Exit::Findings);
    }
    // What was once is none, nor what somebody else wrote.
    let once = |status: &mut Value| {
        status["log_lines_lost"] = json!(8);
        status["dataplane"]["differed"] = json!(1);
    };
    assert_eq!(exit(&once), Exit::Ok);
    let reason = |status: &mut Value| {
        status["flagged_unknown"] = json!({"node-b": {
            "origin": "cli", "set_by": "nodefence flag", "by": "problem: (problem: ", "reason": "problem: (problem: disk)",
            "since": "2026-01-01T00:00:00Z", "remaining_seconds": null, "until": null
        }});
    };
    assert_eq!(exit(&reason), Exit::Ok);
}

#[test]
fn who_changed_the_mode_and_the_log_level_is_told() {
    let lines = new_lines(|status| {
        let by = json!({"by": "root (sudo by ann\u{1b})", "at": "2026-01-01T00:00:00Z"});
        status["mode"] = json!("observe");
        status["mode_set"] = json!({"started": "enforce", "set": "observe", "changed": by});
        let by = json!({"by": "user 7", "at": "2026-01-01T00:00:00Z"});
        status["log_level"] = json!({"started": "info", "set": "debug", "changed": by});
    });
    let mode = lines.iter().position(|line| line.starts_with("Mode ")).expect("a line on the mode");
    let changed = &lines[mode + 1];
    assert!(changed.starts_with("                set to observe by root (sudo by ann"), "{changed}");
    assert!(changed.ends_with(" at 2026-01-01T00:00:00Z; started with enforce"), "{changed}");
    assert!(!changed.contains('\u{1b}'), "{changed:?}");
    let level = "Log level       set to debug by user 7 at 2026-01-01T00:00:00Z; started with info";
    assert!(lines.iter().any(|line| line == level), "{lines:#?}");
}
