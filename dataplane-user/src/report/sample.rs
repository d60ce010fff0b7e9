//! States of an agent, for tests.

use serde_json::{Value, json};

use super::{OffStatus, Status};

/// The state of an agent of two nodes where all is well.
pub(crate) fn well() -> Value {
    json!({
        "version": "0.1.0", "pid": 7, "started": "2026-01-01T00:00:00Z", "node": "node-a",
        "mode": "enforce", "mode_set": {"started": "enforce", "set": "enforce", "changed": null}, "settings": null, "replacement": null, "answer": "refuse", "auto": "observe", "auto_limit": "1/3", "withheld": [],
        "cluster": {
            "source": "the cluster file", "file": "/c.yaml", "loaded": "2026-01-01T00:00:00Z", "age_seconds": 2,
            "max_age_seconds": null, "is_old": false,
            "nodes": 2, "backends": 1, "services": 0, "endpoints": 0, "error": null, "away": null, "is_stored": false, "conflicts": 0,
            "conflict_examples": [], "skipped": 0, "skipped_examples": [], "left_out": 0, "left_out_examples": [], "flags": [], "watch": null, "view": 1,
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

/// The state of [`well`], changed.
pub(crate) fn changed(change: impl FnOnce(&mut Value)) -> Status {
    let mut status = well();
    change(&mut status);
    serde_json::from_value(status).expect("a status")
}

/// A state with IPVS and two nodes that the command has flagged.
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
                "is_complete": true, "listed": count, "challenged": count - 1, "closed": 1, "skipped_closed": 0, "skipped_not_tcp": 1,
                "skipped_opening_or_ended": 0, "unreachable": 0, "liberal": 0, "seconds": 0.02, "problem": null
            })
        };
        status["challenged"] = json!({"node-b": challenged(5), "node-c": challenged(9)});
        let hop = |last: &str| json!({"interface": "eth0", "address": last, "state": "held", "dies_before_the_cut": false});
        status["neighbours"] = json!([hop("10.0.0.2"), hop("10.0.0.3")]);
        status["ipvs"]["loaded"] = json!(true);
        let drained = |drained: usize, waiting: usize, exempt: usize| {
            let rows: Vec<Value> = (0..exempt)
                .map(|port| json!({"service": format!("TCP 10.96.0.1:{port}"), "why": "alone"}))
                .collect();
            json!({
                "drained": drained, "waiting": waiting, "planned": 0, "exempt_services": exempt, "exempt": rows, "failed": 0,
                "problems": []
            })
        };
        status["ipvs"]["nodes"] = json!({"node-b": drained(10, 2, 0), "node-c": drained(11, 0, 1)});
    })
}

/// Settings for all agents, with each field.
pub(crate) fn settings() -> Value {
    json!({
        "found": true, "mode": "enforce", "automatic": "observe", "limit": "1/3",
        "pauses": [{"by": "ann", "reason": "a move", "until": "2026-01-01T01:00:00Z"}], "opted_out": ["node-z"],
        "problem": "spec.limit: `x`; expected a part of the nodes as in 1/3", "away": "the watch of NodeFlags: refused",
        "ignored_flags": [{"name": "one", "problem": "its spec cannot be read: missing field `until`"}],
        "flags_without_machine": [{"name": "two", "problem": "spec.node: there is no NodeMember `node-y` with a UID"}]
    })
}

/// Sets fields, each by its JSON pointer.
fn set<const N: usize>(status: &mut Value, fields: [(&str, Value); N]) {
    for (pointer, value) in fields {
        *status.pointer_mut(pointer).expect("a field of the state") = value;
    }
}

/// A state with a value in every field, and each warning that may stand beside the others.
pub(crate) fn full() -> Status {
    let by = json!({"by": "root (sudo by alice)", "at": "2026-01-01T00:00:00Z"});
    let flag = json!({
        "origin": "cli", "set_by": "nodefence flag", "by": "root", "reason": "disk", "since": "2026-01-01T00:00:00Z",
        "remaining_seconds": 600, "until": "2026-01-01T00:10:00Z"
    });
    let claim = json!({
        "source": "external:cloud", "cause": "external", "by": "npd", "reason": "KernelDeadlock", "evidence": "12 answers owed",
        "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z", "standing": "withheld",
        "withheld_by": [{"kind": "all_nodes"}, {"kind": "zone", "name": "z1"}]
    });
    let node = json!({
        "name": "node-b", "address": "10.0.0.2", "addresses": ["10.0.0.2"], "zone": "z1", "pool": "front", "index": 2,
        "generation": 1, "backends": 4, "own": false, "action": "observe", "exempt": 1, "flag": flag, "claims": [claim]
    });
    let uncovered = json!({
        "address": "192.0.2.78", "port": 9100, "protocol": "tcp", "node": "node-d", "flagged": false, "interface": null,
        "uncovered": "leaves by out0, which is not attached"
    });
    let device = json!({
        "name": "eth0", "ifindex": 3, "link_layer": "l2", "tc": "tcx",
        "xdp": {"state": "generic", "reason": "the driver has no XDP"},
        "programs_ahead": [{"id": 7, "name": "other", "place": "tcx egress"}], "virtual_functions": 2, "bridge": "br0",
        "error": "no room"
    });
    let challenged = json!({
        "is_complete": true, "listed": 9, "challenged": 3, "closed": 2, "skipped_closed": 1, "skipped_not_tcp": 2, "skipped_opening_or_ended": 1,
        "unreachable": 1, "liberal": 1, "seconds": 0.25, "problem": "it was cut short"
    });
    let stale = json!({
        "nodes": 2, "affinity": 3, "affinity_unknown": 4, "datagrams": 5, "tcp": 6, "by_filter": 7, "refused": 8,
        "problem": "no answer"
    });
    let drained = json!({
        "drained": 2, "waiting": 3, "planned": 0, "exempt_services": 1,
        "exempt": [{"service": "TCP 10.96.0.1:80", "why": "alone"}], "failed": 6, "problems": ["TCP 10.96.0.1:443: EPERM"]
    });
    changed(|status| {
        status["pod"] = json!({"uid": "0b5e", "took_again": "2026-01-01T00:00:00Z"});
        set(
            status,
            [
                ("/mode", json!("observe")),
                ("/mode_set", json!({"started": "enforce", "set": "observe", "changed": by})),
                ("/settings", settings()),
                (
                    "/replacement",
                    json!({
                        "product": "Cilium", "device": "cilium_host", "beside": "observes", "why": "Cilium forwards",
                        "remedy": "ip link delete cilium_host"
                    }),
                ),
                (
                    "/withheld",
                    json!([{
                        "scope": {"kind": "zone", "name": "z1"}, "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:05:00Z",
                        "counted": 3, "allowed": 2
                    }]),
                ),
                ("/flagged", json!([node])),
                ("/flagged_unknown", json!({"node-z": flag})),
                ("/claimed_unknown", json!({"node-y": [claim]})),
                ("/exempt", json!(1)),
                (
                    "/exempt_examples",
                    json!([{
                        "node": "node-b", "address": "10.244.3.2", "port": 80, "protocol": "tcp", "service": "default/web",
                        "why": "alone"
                    }]),
                ),
                ("/would_exempt", json!(2)),
                (
                    "/rescue",
                    json!({
                        "idle": "nothing is cut", "own": {"state": "repeated", "repeated": ["IPv4 TCP"]}, "rescued": 3,
                        "tries": 1, "beyond_budget": 2, "not": {"no_flow": 4}
                    }),
                ),
                ("/flags_problem", json!("is damaged")),
                ("/interfaces", json!([device])),
                ("/routes_problem", json!("no buffer space")),
                ("/covered", json!(0)),
                ("/uncovered", json!(3)),
                ("/uncovered_examples", json!([uncovered])),
                ("/cannot_challenge", json!(["flows in another zone of conntrack"])),
                ("/challenged", json!({"node-b": challenged})),
                ("/proxy/mode", json!("ipvs")),
                ("/stale", json!({"node-b": stale})),
                (
                    "/neighbours",
                    json!([{"interface": "eth0", "address": "10.0.0.2", "state": "unknown", "dies_before_the_cut": true}]),
                ),
                ("/conntrack", json!({"zone": 7, "listed_v4": 2, "listed_v6": 1})),
                ("/log_lines_lost", json!(8)),
                ("/log_level", json!({"started": "info", "set": "debug", "changed": by})),
            ],
        );
        set(
            &mut status["cluster"],
            [
                ("/view", json!(0)),
                ("/age_seconds", json!(61)),
                ("/max_age_seconds", json!(60)),
                ("/is_old", json!(true)),
                ("/error", json!("line 5")),
                ("/away", json!("the watch of Services: connection refused")),
                ("/watch", json!("no inotify")),
                ("/conflicts", json!(3)),
                (
                    "/conflict_examples",
                    json!([{"object": "node `b`", "field": "addresses[0]", "message": "is no address"}]),
                ),
                ("/skipped", json!(2)),
                (
                    "/skipped_examples",
                    json!([{"object": "slice `x/s`", "field": "endpoints[0].node", "message": "`node-w` is not among the nodes"}]),
                ),
                ("/left_out", json!(2)),
                (
                    "/left_out_examples",
                    json!([{"node": "b", "address": "fd00::2", "why": "it may be b's own address"}]),
                ),
                ("/flags", json!(["2 of 3 nodes", "the own node"])),
            ],
        );
        set(
            &mut status["dataplane"],
            [
                ("/left_out", json!(3)),
                ("/left_out_ports", json!(5)),
                ("/left_out_first", json!(["10.9.1.1", "10.9.1.2"])),
                ("/error", json!("backends: E2BIG")),
                ("/compared", json!(4)),
                ("/compared_last", json!("2026-01-01T00:00:00Z")),
                ("/differed", json!(4)),
                ("/compare_error", json!("os error 38")),
                ("/renewed_seconds_ago", json!(3.1)),
                ("/renew_error", json!("node-b: no room")),
            ],
        );
        set(
            &mut status["ipvs"],
            [
                ("/loaded", json!(true)),
                ("/note", json!("a switch is 0")),
                ("/problems", json!(["one", "two"])),
                ("/changes", json!(5)),
                ("/guard", json!({"kind": "external", "seen": false})),
                ("/nodes", json!({"node-b": drained})),
            ],
        );
    })
}

/// A state with the warnings that cannot stand beside some of those of [`full`].
pub(crate) fn blind() -> Status {
    changed(|status| {
        set(
            status,
            [
                ("/interfaces/0/tc", Value::Null),
                ("/uncovered", json!(2)),
                ("/dataplane/renewed_seconds_ago", json!(2.6)),
                ("/rescue/idle", json!("how kube-proxy forwards is not known")),
            ],
        );
    })
}

/// A state with backends, and no device.
pub(crate) fn no_device() -> Status {
    changed(|status| {
        set(status, [("/interfaces", json!([])), ("/covered", json!(0)), ("/uncovered", json!(2))]);
    })
}

/// A state that somebody has set to observe, with one warning.
pub(crate) fn observes() -> Status {
    let by = json!({"by": "root (sudo by alice)", "at": "2026-01-01T00:00:00Z"});
    changed(|status| {
        set(
            status,
            [
                ("/mode", json!("observe")),
                ("/mode_set", json!({"started": "enforce", "set": "observe", "changed": by})),
                ("/ipvs/guard", json!({"kind": "external", "seen": false})),
                ("/rescue/own", json!({"state": "repeated", "repeated": ["IPv4 TCP"]})),
            ],
        );
    })
}

/// A state with one node that is cut and one that was, and of the rest what may be shown while all is well.
pub(crate) fn one_flagged() -> Status {
    let by = json!({"by": "user 7", "at": "2026-01-01T00:00:00Z"});
    let mut status = serde_json::to_value(two_flagged()).expect("JSON");
    status["flagged"].as_array_mut().expect("a list").truncate(1);
    let mut unattached = status["interfaces"][0].clone();
    unattached["name"] = json!("eth1");
    unattached["tc"] = Value::Null;
    let mut bridge = status["interfaces"][0].clone();
    bridge["bridge"] = bridge["name"].clone();
    let hops = ["held", "fixed", "not_the_node", "unknown"].map(|state| {
        json!({
            "interface": "eth0", "address": "10.0.0.2", "state": state, "dies_before_the_cut": state == "unknown"
        })
    });
    let stale = json!({
        "nodes": 1, "affinity": 1, "affinity_unknown": 0, "datagrams": 2, "tcp": 3, "by_filter": 4, "refused": 0,
        "problem": null
    });
    let planned = json!({
        "drained": 0, "waiting": 0, "planned": 5, "exempt_services": 1, "exempt": [], "failed": 0, "problems": []
    });
    set(
        &mut status,
        [
            ("/mode_set", json!({"started": "observe", "set": "enforce", "changed": by})),
            ("/log_level", json!({"started": "info", "set": "debug", "changed": by})),
            ("/cluster/max_age_seconds", json!(60)),
            ("/cluster/services", Value::Null),
            ("/cluster/endpoints", Value::Null),
            ("/interfaces", json!([bridge, unattached])),
            ("/covered", Value::Null),
            ("/neighbours", json!(hops)),
            ("/rescue/own/state", json!("balanced")),
            ("/stale", json!({"node-b": stale})),
            ("/ipvs/nodes/node-b", planned),
            ("/ipvs/guard", json!({"kind": "external", "seen": true})),
        ],
    );
    serde_json::from_value(status).expect("a status")
}

/// The state of an agent that a user turned off.
pub(crate) fn off() -> OffStatus {
    let status = json!({
        "state": "off", "why": "off by root: INC-4711; `nodefence on` turns it on", "taken_back": true, "problems": [], "flags": 1,
        "off": {"kind": "node", "by": "root", "since": "2026-01-01T00:00:00Z", "reason": "INC-4711", "problem": null},
        "version": "0.1.0", "pid": 7, "started": "2026-01-01T00:00:00Z"
    });
    serde_json::from_value(status).expect("a status")
}
