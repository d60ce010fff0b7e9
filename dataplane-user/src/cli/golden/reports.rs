//! The reports as they are printed.

use nodefence_common::{Counter, Reason};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{FORMATS, check, has_all, report, section, sections};
use crate::{
    cli::{
        adjust,
        args::Format,
        audit, crds, flag,
        nodes::{self, Watched},
        tables,
    },
    crds::{Applied, Outcome},
    dataplane::Unanswered,
    report::{
        Adjusted, AuditReport, BackendRow, CounterRow, FlagReport, FlowList, List, ModeReport, NodeList,
        NodeRow, RepairReport, UnflagReport, sample,
    },
    rescue::Fate,
};

/// Reads samples from the JSON that the agent sends.
fn read<T: DeserializeOwned>(samples: &[(&'static str, Value)]) -> Vec<(&'static str, T)> {
    let read_one = |(what, sample): &(&'static str, Value)| -> (&'static str, T) {
        let value = serde_json::from_value(sample.clone());
        (*what, value.unwrap_or_else(|error| panic!("{what}: {error}")))
    };
    samples.iter().map(read_one).collect()
}

/// Reads samples of rows that are printed as a list.
fn read_lists<T: DeserializeOwned>(samples: &[(&'static str, Value)]) -> Vec<(&'static str, List<T>)> {
    read::<Vec<T>>(samples).into_iter().map(|(what, rows)| (what, List::from(rows))).collect()
}

fn held_flag() -> Value {
    json!({
        "origin": "cli", "set_by": "nodefence flag", "by": "root (sudo by alice)", "reason": "disk is gone",
        "since": "2026-01-01T00:00:00Z", "remaining_seconds": 90, "until": "2026-01-01T00:01:30Z"
    })
}

#[test]
fn backends() {
    let pod = json!({
        "address": "10.244.2.7", "port": null, "protocol": null, "node": "node-b", "flagged": true,
        "interface": "eth0", "uncovered": null
    });
    let host = json!({
        "address": "10.2.0.12", "port": 9100, "protocol": "tcp", "node": "node-b", "flagged": false,
        "interface": null, "uncovered": "leaves by wg0, which is not attached"
    });
    let unknown = json!({
        "address": "fd00::7", "port": null, "protocol": null, "node": "node-c", "flagged": false,
        "interface": null, "uncovered": null
    });
    let samples = [("full", json!([pod, host])), ("least", json!([unknown])), ("none", json!([]))];
    let samples = read_lists::<BackendRow>(&samples);
    report("backends", &samples, &FORMATS, |rows, _| tables::backends(rows));
}

#[test]
fn flows() {
    let tcp = json!({
        "protocol": "tcp", "protocol_number": 6, "client": "10.244.1.9:40000", "service": "10.96.0.10:80",
        "backend": "10.244.2.7:8080", "node": "node-b", "state": "established", "zone": 7, "timeout_seconds": 86390
    });
    let udp = json!({
        "protocol": "udp", "protocol_number": 17, "client": "[fd00::9]:53", "service": "[fd00::a]:53",
        "backend": "[fd00::7]:53", "node": "node-b", "state": null, "zone": 0, "timeout_seconds": 30
    });
    let mut gre = udp.clone();
    gre["protocol"] = Value::Null;
    gre["protocol_number"] = json!(47);
    let samples = [
        ("full", json!({"items": [tcp], "notes": ["flows that are not listed (--limit 20): 3"]})),
        ("least", json!({"items": [udp, gre], "notes": []})),
        ("none", json!({"items": [], "notes": []})),
    ];
    report("flows", &read::<FlowList>(&samples), &FORMATS, |flows, _| tables::flows(flows));
}

#[test]
fn counters() {
    let counter = Counter { packets: 12, bytes: 720 };
    let kernel = Reason::ALL.iter().map(|reason| CounterRow::of(reason.name(), reason.help(), counter));
    let own = [Unanswered::Unanswerable, Unanswered::NotInjected]
        .map(|why| CounterRow::of(why.name(), why.help(), counter));
    let rescued = Fate::ALL.iter().map(|fate| CounterRow::of(fate.name(), fate.help(), counter));
    let all: Vec<CounterRow> = kernel.chain(own).chain(rescued).collect();
    let samples = [("full", json!(all)), ("none", json!([]))];
    let samples = read_lists::<CounterRow>(&samples);
    report("counters", &samples, &FORMATS, |rows, _| tables::counters(rows));
}

#[test]
fn nodes_of_all_kinds() {
    let claim = json!({
        "source": "external:cloud", "cause": "external", "by": "npd", "reason": "KernelDeadlock",
        "evidence": "12 answers owed", "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z",
        "standing": "withheld",
        "withheld_by": [{"kind": "all_nodes"}, {"kind": "zone", "name": "z1"}, {"kind": "pool", "name": "front"}]
    });
    let of = |standing: &str| {
        json!({
            "source": "hung", "cause": "hung", "by": "", "reason": "", "evidence": null,
            "since": "2026-01-01T00:00:00Z", "until": null, "standing": standing, "withheld_by": []
        })
    };
    let standings = ["enforced", "observed", "withheld", "off", "opted-out", "unknown", "over"].map(of);
    let full = json!({
        "name": "node-b", "address": "10.2.0.12", "addresses": ["10.2.0.12", "fd00::12"], "zone": "z1",
        "pool": "front", "index": 1, "generation": 2, "backends": 3, "own": true, "action": "refuse", "exempt": 2,
        "flag": held_flag(), "claims": [claim]
    });
    let least = json!({
        "name": "node-c", "address": null, "addresses": [], "zone": null, "pool": null, "index": 2,
        "generation": 1, "backends": 0, "own": false, "action": "pass", "exempt": 0, "flag": null, "claims": []
    });
    let claimed = json!({
        "name": "node-d", "address": null, "addresses": [], "zone": null, "pool": null, "index": 3,
        "generation": 1, "backends": 0, "own": false, "action": "observe", "exempt": 0, "claims": standings,
        "flag": {
            "origin": "cluster-file", "set_by": "the cluster file", "by": "", "reason": "",
            "since": "2026-01-01T00:00:00Z", "remaining_seconds": null, "until": null
        }
    });
    let mut forever = least.clone();
    forever["flag"] = held_flag();
    forever["flag"]["remaining_seconds"] = Value::Null;
    forever["flag"]["by"] = json!("");
    let samples = [
        ("full", json!([full])),
        ("least", json!([least])),
        ("claimed", json!([claimed, forever])),
        ("none", json!([])),
    ];
    let rows = read::<Vec<NodeRow>>(&samples);
    let watched: Vec<NodeRow> = rows.iter().flat_map(|(_, rows)| rows.clone()).collect();
    let lists: Vec<(&str, NodeList)> = rows
        .into_iter()
        .map(|(what, items)| {
            let not_found = if what == "full" { vec!["node-z".to_owned()] } else { Vec::new() };
            (what, NodeList { items, not_found })
        })
        .collect();
    let formats = [Format::Table, Format::Wide, Format::Name, Format::Json, Format::Yaml];
    has_all("nodes", &lists[0].1, &[]);
    let mut text = sections(&lists, &formats, |list, format| nodes::table(list, format, false));
    for format in formats {
        let shown = Watched::default().text(&watched, format, true).expect("text");
        text += &section("--watch", format, &shown);
    }
    check("nodes", &text);
}

#[test]
fn what_a_flag_did() {
    let challenged = json!({
        "is_complete": true, "listed": 9, "challenged": 3, "closed": 2, "skipped_closed": 1, "skipped_not_tcp": 2,
        "skipped_opening_or_ended": 1, "unreachable": 1, "liberal": 1, "seconds": 0.25, "problem": "it was cut short"
    });
    let uncovered = json!({
        "address": "10.244.2.7", "port": 9100, "protocol": "tcp", "node": "node-b", "flagged": true, "interface": "wg0",
        "uncovered": "leaves by wg0"
    });
    let exempt = json!({
        "node": "node-b", "address": "10.244.2.8", "port": 80, "protocol": "tcp", "service": "default/web",
        "why": "default/web has nothing else"
    });
    let full = json!({
        "node": "node-b", "on": "node-a", "by": "root (sudo by alice)", "index": 3, "action": "refuse",
        "for_seconds": 3600, "backends": 30, "uncovered_count": 22, "uncovered": [uncovered], "cut_count": 7,
        "exempt_count": 21, "exempt": [exempt], "left_out": 4,
        "beyond_maps": 5, "new_refused": "IPVS is not loaded", "replaced": held_flag(), "written": true,
        "flip_micros": 40, "received_ns": 1000, "established": 4, "challenging": true, "challenged": challenged, "not_challenged": "with --answer drop nobody is told",
        "warnings": ["it is the own node"]
    });
    let least = json!({
        "node": "node-b", "on": "", "by": "", "index": 3, "action": "refuse", "for_seconds": null, "backends": 0,
        "uncovered_count": 0, "uncovered": [], "cut_count": 0, "exempt_count": 0, "exempt": [], "left_out": 0, "beyond_maps": 0,
        "new_refused": null, "replaced": null, "written": false, "flip_micros": 0, "received_ns": 0,
        "established": null, "challenging": false, "challenged": null, "not_challenged": null, "warnings": []
    });
    let with = |name: &str, value: Value| {
        let mut changed = least.clone();
        changed[name] = value;
        changed
    };
    let mut counted = full.clone();
    counted["challenged"]["problem"] = Value::Null;
    counted["challenging"] = json!(false);
    counted["not_challenged"] = Value::Null;
    let mut challenged_once = counted.clone();
    challenged_once["challenging"] = json!(true);
    let samples = [
        ("full", full),
        ("counted", counted),
        ("challenged once", challenged_once),
        ("least", least.clone()),
        ("observed", with("action", json!("observe"))),
        ("challenging", with("challenging", json!(true))),
        ("withdrawn", with("action", json!("pass"))),
    ];
    report("flag", &read::<FlagReport>(&samples), &FORMATS, |report, _| {
        let (strict, _) = flag::strict(report);
        [flag::flag(report), strict.map(|strict| format!("nodefence: {strict}")).unwrap_or_default()].concat()
    });
}

#[test]
fn what_an_unflag_did() {
    let of = |was_flagged: bool, still: Value, warnings: Value| json!({"node": "node-b", "was_flagged": was_flagged, "still": still, "warnings": warnings});
    let samples = [
        ("full", of(true, held_flag(), json!(["it may come back"]))),
        ("least", of(true, Value::Null, json!([]))),
        ("not flagged", of(false, Value::Null, json!([]))),
    ];
    report("unflag", &read::<UnflagReport>(&samples), &FORMATS, |report, _| tables::unflag(report));
}

#[test]
fn what_an_audit_found() {
    let difference = |state: &str, count: u64, service: Value| {
        json!({
            "kind": "stale-udp", "state": state, "age_seconds": 90, "subject": "flows to 10.244.2.7:53",
            "count": count, "service": service, "detail": "no serving endpoint", "remedy": "nodefence repair --kind stale-udp"
        })
    };
    let kind = |name: &str, why: Value, watched: Value| {
        json!({
            "kind": name, "not_looked_at": why, "watched_seconds": watched, "faults": 1, "new": 2, "draining": 3, "not_listed": 4
        })
    };
    let full = json!({
        "node": "node-a", "fault_after_seconds": 60.0, "faults": 1,
        "kinds": [kind("stale-udp", Value::Null, json!(20)), kind("flagged-flow", json!("--proxy none"), Value::Null)],
        "differences": [
            difference("fault", 1, json!("default/dns:dns")), difference("new", 3, Value::Null), difference("draining", 1, Value::Null)
        ],
        "repairs": ["stale-udp", "flagged-flow"]
    });
    let least = json!({
        "node": "node-a", "fault_after_seconds": 60.0, "faults": 0, "kinds": [], "differences": [], "repairs": []
    });
    let samples = read::<AuditReport>(&[("full", full), ("least", least)]);
    report("audit", &samples, &FORMATS, |report, _| {
        [audit::audit_warnings(report).concat(), audit::audit(report)].join("\n")
    });
}

#[test]
fn what_a_repair_did() {
    let row = |outcome: &str, service: Value| {
        json!({
            "kind": "stale-udp", "subject": "flow x", "service": service, "action": "delete its conntrack entry", "outcome": outcome
        })
    };
    let web = json!("default/web:http");
    let rows = json!([
        row("fixed", web.clone()),
        row("fixed", web.clone()),
        row("failed", web.clone()),
        row("skipped", web)
    ]);
    let of = |dry_run: bool, rows: Value, notes: Value| json!({"dry_run": dry_run, "rows": rows, "not_due": 3, "notes": notes});
    let samples = [
        ("full", of(false, rows, json!(["the table is busy"]))),
        ("planned", of(true, json!([row("would_fix", Value::Null)]), json!([]))),
        ("least", of(false, json!([]), json!([]))),
    ];
    report("repair", &read::<RepairReport>(&samples), &FORMATS, |report, _| audit::repair(report));
}

#[test]
fn what_became_of_definitions() {
    let row = |name: &str, outcome| Applied { name: format!("{name}.nodefence.io"), outcome };
    let rows = vec![
        row("nodemembers", Outcome::Created),
        row("nodeclaims", Outcome::Changed),
        row("nodereports", Outcome::Unchanged),
    ];
    report("crds", &[("full", List::from(rows))], &FORMATS, |applied, _| crds::table(applied));
}

#[test]
fn settings_that_commands_change() {
    let changed = json!({"by": "root (sudo by alice)", "at": "2026-01-01T00:00:00Z"});
    let mode = |changed: Value, settings: Value, warnings: Value| {
        json!({
            "mode": "observe", "started": "enforce", "set": "observe", "changed": changed, "settings": settings,
            "warnings": warnings
        })
    };
    let samples = [
        ("full", mode(changed.clone(), sample::settings(), json!(["--auto observe holds"]))),
        ("least", mode(Value::Null, Value::Null, json!([]))),
    ];
    report("mode", &read::<ModeReport>(&samples), &FORMATS, |report, _| adjust::mode(report));
    let level = |changed: Value| json!({"started": "info", "set": "debug", "changed": changed});
    let samples = [("full", level(changed)), ("least", level(Value::Null))];
    report("log-level", &read::<Adjusted<String>>(&samples), &FORMATS, |row, _| adjust::log_level(row));
}
