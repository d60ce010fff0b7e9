//! In JSON each command prints one object that fits its published schema. So do errors.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Agent, four_nodes, nodefence_command};
use serde_json::Value;

use crate::{VERBS, text};

macro_rules! schemas {
    ($($kind:literal),+ $(,)?) => {
        [$(($kind, include_str!(concat!("../../../docs/schema/", $kind, ".json")))),+]
    };
}

const SCHEMAS: [(&str, &str); 18] = schemas![
    "AuditReport",
    "BackendList",
    "CounterList",
    "DetachReport",
    "DoctorReport",
    "Error",
    "FlagReport",
    "FlowList",
    "LogLevelReport",
    "ModeReport",
    "Node",
    "NodeList",
    "OffReport",
    "OffStatus",
    "OnReport",
    "RepairReport",
    "Status",
    "UnflagReport",
];

/// Verbs without an object as result: they print a script, a page or a log. `crds` prints objects of the API server, or needs one.
const SILENT: [&str; 7] = ["agent", "guard", "controller", "crds", "completions", "man", "help"];

/// Parses a text that must be one object of this kind, and checks the object by its schema.
pub(crate) fn document(kind: &str, text: &str) -> Result<Value> {
    let (_, schema) = SCHEMAS.iter().find(|(name, _)| *name == kind).context("no schema")?;
    let validator = jsonschema::validator_for(&serde_json::from_str(schema)?)?;
    let value: Value = serde_json::from_str(text).with_context(|| format!("no object: {text}"))?;
    let wrong: Vec<String> =
        validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    ensure!(wrong.is_empty(), "{kind}: {wrong:#?}\nin {value:#}");
    ensure!(value["kind"] == kind && value["schema_version"] == 1, "{value:#}");
    Ok(value)
}

fn start() -> Result<Agent> {
    // The agent keeps the namespace alive.
    let ns = four_nodes::namespace("cli")?;
    Agent::start(&ns, "node-a", &["v0"], four_nodes::FILE)
}

#[test]
fn every_verb_prints_an_object_of_its_schema() -> Result<()> {
    let mut agent = start()?;
    let run_dir = agent.socket().parent().and_then(|dir| dir.to_str()).context("no folder")?.to_owned();
    let mut tried = BTreeSet::from(SILENT);
    for (kind, args) in [
        ("Status", &["status"][..]),
        ("FlagReport", &["flag", "node-b", "--reason", "disk"]),
        ("FlagReport", &["flag", "node-b", "--for", "forever", "--wait"]),
        ("NodeList", &["nodes"]),
        ("NodeList", &["nodes", "node-b"]),
        ("BackendList", &["backends"]),
        ("FlowList", &["flows", "--limit", "3"]),
        ("CounterList", &["counters"]),
        ("AuditReport", &["audit"]),
        ("RepairReport", &["repair", "--kind", "stale-udp,stray-weight", "--dry-run"]),
        ("RepairReport", &["repair", "--kind", "stale-udp"]),
        ("ModeReport", &["mode"]),
        ("ModeReport", &["mode", "observe"]),
        ("LogLevelReport", &["log-level"]),
        ("LogLevelReport", &["log-level", "debug"]),
        ("DoctorReport", &["doctor"]),
        ("Status", &["status"]),
        ("UnflagReport", &["unflag", "node-b"]),
        ("UnflagReport", &["unflag", "node-c"]),
        ("OffReport", &["off", "--reason", "INC-4711"]),
        ("OffStatus", &["status"]),
        ("OnReport", &["on"]),
        ("DetachReport", &["detach", "--run-dir", &run_dir]),
        ("DetachReport", &["detach", "--run-dir", &run_dir]),
    ] {
        tried.insert(args[0]);
        if args[0] == "detach" && agent.proc().is_ok() {
            agent.terminate()?;
        }
        let output = agent.cli(&[args, &["-o", "json"]].concat())?;
        let told = text(&output.stdout);
        let value = document(kind, &told).with_context(|| format!("{args:?}: {}", text(&output.stderr)))?;
        ensure!(
            told.starts_with(&format!("{{\n  \"schema_version\": 1,\n  \"kind\": \"{kind}\",\n")),
            "{told}"
        );
        // The object has all warnings that the command prints.
        for line in text(&output.stderr).lines().filter_map(|line| line.strip_prefix("warning: ")) {
            let lists = [&value["warnings"], &value["notes"]];
            let mut said = lists.iter().filter_map(|list| list.as_array()).flatten();
            let is_told = said.any(|warning| warning == line) || args[0] == "audit";
            ensure!(is_told, "{args:?} prints a warning that its object lacks: {line}");
        }
        let yaml = text(&agent.cli(&[args, &["-o", "yaml"]].concat())?.stdout);
        ensure!(yaml.starts_with(&format!("schema_version: 1\nkind: {kind}\n")), "{args:?}: {yaml}");
    }
    ensure!(tried == BTreeSet::from(VERBS), "not tried: {:?}", &BTreeSet::from(VERBS) - &tried);
    Ok(())
}

#[test]
fn a_failure_is_an_object_too() -> Result<()> {
    let agent = start()?;
    let run_dir = agent.socket().parent().and_then(|dir| dir.to_str()).context("no folder")?.to_owned();
    for (args, code, reason, message) in [
        (&["flag"][..], 2, "usage", "the following required arguments were not provided: <NODE>"),
        (&["flag", "node-b", "--for", "soon"], 2, "usage", "invalid value 'soon' for '--for <TIME>'"),
        (&["dance"], 2, "usage", "unrecognized subcommand 'dance'"),
        (&[], 2, "usage", "requires a subcommand"),
        (&["log-level", "nodefence=loud"], 1, "failed", "loud"),
        (&["flag", "node-a"], 4, "refused", "node-a"),
        (&["flag", "node-z"], 7, "not_found", "there is no node `node-z`"),
        (&["flows", "--service", "default/z"], 7, "not_found", "there is no Service `default/z`"),
        (
            &["nodes", "node-y", "node-z"],
            7,
            "not_found",
            "there is no node `node-y` (see `nodefence nodes`); ",
        ),
        (&["detach", "--run-dir", &run_dir], 6, "busy", "end it first"),
    ] {
        let output = agent.cli(&[args, &["-o", "json"]].concat())?;
        ensure!(output.status.code() == Some(code), "{args:?}: {output:?}");
        let error = document("Error", &text(&output.stderr)).with_context(|| format!("{args:?}"))?;
        ensure!(error["exit_code"] == code && error["reason"] == reason, "{args:?}: {error:#}");
        ensure!(error["message"].as_str().is_some_and(|told| told.contains(message)), "{args:?}: {error:#}");
        let yaml = text(&agent.cli(&[args, &["-o", "yaml"]].concat())?.stderr);
        ensure!(yaml.starts_with("schema_version: 1\nkind: Error\n"), "{args:?}: {yaml}");
        let line = text(&agent.cli(args)?.stderr);
        ensure!(line.starts_with("nodefence: ") || code == 2, "{line}");
    }
    let mut command = nodefence_command()?;
    command.args(["nodes", "--socket", "/nonexistent/agent.sock"]).env("NODEFENCE_OUTPUT", "json");
    let output = command.output()?;
    let error = document("Error", &text(&output.stderr))?;
    ensure!(error["reason"] == "unreachable" && output.status.code() == Some(3), "{error:#}");
    // An error names the variable that has the wrong value, also in JSON.
    let mut command = nodefence_command()?;
    command.args(["flag", "node-b", "-o", "json"]).env("NODEFENCE_FLAG_FOR", "soon");
    let error = document("Error", &text(&command.output()?.stderr))?;
    ensure!(
        error["causes"][0].as_str().is_some_and(|cause| cause.contains("NODEFENCE_FLAG_FOR")),
        "{error:#}"
    );
    Ok(())
}
