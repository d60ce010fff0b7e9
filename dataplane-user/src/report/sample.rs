//! States of an agent, for tests.

use serde_json::{Value, json};

use super::Status;

/// Of an agent of two nodes where all is well.
pub(crate) fn well() -> Value {
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
        "rescue": {"idle": null, "own": {"state": "not_tried", "repeated": []}, "rescued": 0, "tries": 0, "beyond_budget": 0, "not": {}},
        "flags_problem": null,
        "dataplane": {
            "pin_dir": "/sys/fs/bpf/nodefence/v3", "max_backends": 8, "left_out": 0, "left_out_ports": 0,
            "left_out_first": [], "error": null, "compared": 0, "compared_last": null, "differed": 0,
            "compare_error": null, "renewed_seconds_ago": 0.5, "renew_error": null
        },
        "interfaces": [{
            "name": "eth0", "ifindex": 3, "link_layer": "l2", "tc": "tcx", "xdp": {"state": "off", "reason": null}, "programs_ahead": [],
            "virtual_functions": 0, "bridge": null, "error": null
        }],
        "routes_problem": null, "covered": 1, "uncovered": 0, "uncovered_examples": [],
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

/// That one, changed.
pub(crate) fn changed(change: impl FnOnce(&mut Value)) -> Status {
    let mut status = well();
    change(&mut status);
    serde_json::from_value(status).expect("a status")
}

/// Behind IPVS, with two nodes that are cut, as the command flags them.
pub(crate) fn two_flagged() -> Status {
    changed(|status| {
        let row = |name: &str, index: u32, until: Option<&str>| {
            json!({
                "name": name, "address": format!("10.0.0.{index}"), "addresses": [format!("10.0.0.{index}")], "zone": null,
                "pool": null, "index": index, "generation": 1, "backends": 4, "own": false, "action": "refuse",
                "exempt": index - 2, "claims": [],
                "flag": {
                    "origin": "cli", "set_by": "nodefence flag", "by": "root", "reason": "disk", "since": "2026-01-01T00:00:00Z",
                    "remaining_seconds": until.map(|_| 600), "until": until
                }
            })
        };
        status["flagged"] = json!([row("node-b", 2, Some("2026-01-01T00:10:00Z")), row("node-c", 3, None)]);
        status["exempt"] = json!(1);
        status["exempt_examples"] = json!([{
            "node": "node-c", "address": "10.244.3.2", "port": 80, "protocol": "tcp", "service": "default/web", "why": "alone"
        }]);
        status["proxy"] = json!({"mode": "ipvs", "why": "kube-proxy says so"});
        let challenged = |count: usize| {
            json!({
                "listed": count, "challenged": count - 1, "closed": 1, "skipped_closed": 0, "skipped_not_tcp": 1,
                "skipped_opening_or_ended": 0, "unreachable": 0, "liberal": 0, "seconds": 0.02, "problem": null
            })
        };
        status["challenged"] = json!({"node-b": challenged(5), "node-c": challenged(9)});
        let hop = |last: &str| json!({"interface": "eth0", "address": last, "state": "held", "dies_before_the_cut": false});
        status["neighbours"] = json!([hop("10.0.0.2"), hop("10.0.0.3")]);
        status["ipvs"]["loaded"] = json!(true);
        let out = |taken: usize, waiting: usize, exempt: usize| {
            let rows: Vec<Value> = (0..exempt)
                .map(|port| json!({"service": format!("TCP 10.96.0.1:{port}"), "why": "alone"}))
                .collect();
            json!({
                "taken": taken, "waiting": waiting, "planned": 0, "exempt_services": exempt, "exempt": rows, "failed": 0,
                "problems": []
            })
        };
        status["ipvs"]["nodes"] = json!({"node-b": out(10, 2, 0), "node-c": out(11, 0, 1)});
    })
}
