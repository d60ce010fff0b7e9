use serde_json::{Value, json};

use super::*;
use crate::{
    cli::{args::Format, doctor, golden},
    report::{OffKind, OffState},
};

const FORMATS: [Format; 3] = [Format::Table, Format::Json, Format::Yaml];

fn row(kind: &str) -> Value {
    json!({
        "kind": kind, "by": "root (sudo by alice)", "since": "2026-01-01T00:00:00Z", "reason": "INC-4711",
        "problem": "/run/nodefence/off.json is damaged: EOF; it turns the agent off all the same"
    })
}

fn least() -> Value {
    json!({"kind": "node", "by": "somebody", "since": null, "reason": "", "problem": null})
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[test]
fn what_off_did() {
    let of = |was_off: bool, off: Value, pid: Value, removed: u32, flags: Value, warnings: Value| {
        read::<OffReport>(json!({
            "was_off": was_off, "off": off, "pid": pid, "links": removed, "filters": removed, "qdiscs": removed,
            "maps": 2 * removed, "restored": removed, "flags": flags, "warnings": warnings
        }))
    };
    let late = "what the agent did is still being taken back; see `nodefence status`";
    let lost = "cannot write /run/nodefence/off.json: the disk has not answered; a restart of the agent turns it on again";
    let samples = [
        ("full", of(false, row("node"), json!(7), 2, json!(1), json!([late, lost]))),
        ("already", of(true, row("node"), json!(7), 0, json!(0), json!([]))),
        ("no agent", of(false, least(), Value::Null, 1, Value::Null, json!([]))),
    ];
    golden::report("off", &samples, &FORMATS, |report, _| off_text(report));
}

#[test]
fn what_on_did() {
    let of = |was: Value, still: Value, pid: Value, runs: bool, file: Value, warnings: Value| {
        read::<OnReport>(json!({
            "was": was, "still": still, "pid": pid, "runs": runs, "file": file, "warnings": warnings
        }))
    };
    let file = json!("/run/nodefence/off.json");
    let late = json!(["the agent is starting, and does not answer yet: its log says what it waits for"]);
    let samples = [
        ("full", of(row("node"), row("settings"), json!(7), false, file.clone(), late.clone())),
        ("runs", of(row("node"), Value::Null, json!(7), true, file.clone(), json!([]))),
        ("starts", of(row("node"), Value::Null, json!(7), false, file.clone(), late)),
        ("no agent", of(least(), Value::Null, Value::Null, false, file, json!([]))),
        ("not off", of(Value::Null, Value::Null, json!(7), true, Value::Null, json!([]))),
    ];
    golden::report("on", &samples, &FORMATS, |report, _| on_text(report));
}

#[test]
fn the_status_of_an_agent_that_is_off() {
    let of = |why: &str, off: Value, taken_back: bool, problems: Value, flags: Value| {
        read::<OffStatus>(json!({
            "state": "off", "why": why, "off": off, "taken_back": taken_back, "problems": problems, "flags": flags,
            "version": "0.1.0", "pid": 7, "started": "2026-01-01T00:00:01Z"
        }))
    };
    let done = "off since 2026-01-01T00:00:00Z by root: INC-4711; nothing of ours is attached, nothing is cut; `nodefence on` turns it on";
    let doing = "off by the settings in the API server; what the agent did is being taken back; `kubectl nodefence mode observe` turns all agents on";
    let failed =
        "off by somebody; nothing is cut, but not all could be taken back; `nodefence on` turns it on";
    let samples = [
        ("full", of(failed, row("node"), false, json!(["IPVS refuses"]), json!(2))),
        ("done", of(done, row("node"), true, json!([]), json!(0))),
        ("begun", of(doing, row("settings"), false, json!([]), Value::Null)),
    ];
    golden::report("status_off", &samples, &FORMATS, |report, _| status(report));
    let [(_, full), ..] = samples;
    assert_eq!((full.state, full.off.kind), (OffState::Off, OffKind::Node));
    let found = doctor::off(&full);
    assert!(
        found.found.starts_with("process 7 is off since ") && found.found.contains("alice"),
        "{}",
        found.found
    );
}

#[test]
fn an_answer_says_whether_the_agent_is_off() {
    let off = json!({
        "state": "off", "why": "", "off": least(), "taken_back": true, "problems": [], "flags": null, "version": "",
        "pid": 1, "started": "2026-01-01T00:00:00Z"
    });
    assert!(matches!(read::<OrOff<bool>>(off), OrOff::Off(_)));
    assert!(matches!(read::<OrOff<bool>>(json!(true)), OrOff::Runs(true)));
    let wrong = serde_json::from_value::<OrOff<bool>>(json!({"off": {}})).unwrap_err().to_string();
    assert!(wrong.contains("missing field"), "{wrong}");
}

#[test]
fn without_an_agent_the_commands_do_the_work_themselves() {
    use clap::Parser as _;
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().join("run");
    let cli = |words: &[&str]| {
        let run_dir = run_dir.to_str().unwrap();
        Cli::parse_from(["nodefence", "--run-dir", run_dir].iter().chain(words))
    };
    // Not off.
    let report = turn_on(&cli(&["on"])).unwrap();
    assert_eq!((report.was, report.file, report.runs), (None, None, false));
    // A folder without a BPF filesystem, as after a restart of the machine.
    OffFile::new(&run_dir).write(&Off::now("root".to_owned(), "x".to_owned())).unwrap();
    let report = turn_on(&cli(&["on"])).unwrap();
    assert_eq!(report.was.map(|was| was.reason), Some("x".to_owned()));
    assert!(report.file.is_some() && !OffFile::new(&run_dir).is_there());
}
