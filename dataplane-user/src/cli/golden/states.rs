//! The agent's status, and the explanations of its warnings.

use std::{collections::BTreeSet, io};

use serde_json::{Value, json};

use super::{FORMATS, check, has_all, sections};
use crate::{
    cli::{args::Format, explain::Explained, status},
    report::{ClientError, Code, Status, StatusReport, sample},
};

fn gone() -> ClientError {
    ClientError::Unreachable {
        path: "/run/nodefence/agent.sock".into(),
        source: io::ErrorKind::NotFound.into(),
    }
}

fn reports<const N: usize>(states: [(&'static str, Status); N]) -> Vec<(&'static str, StatusReport)> {
    states.into_iter().map(|(what, status)| (what, StatusReport::from(status))).collect()
}

#[test]
fn how_an_agent_is() {
    let whole = reports([
        ("full", sample::full()),
        ("well", sample::changed(|_| ())),
        ("two flagged", sample::two_flagged()),
        ("by a stored view", sample::changed(|status| status["cluster"]["is_stored"] = json!(true))),
    ]);
    // Settings of the API server that keep agents from cutting.
    let kept = |field: &str, value: Value| {
        sample::changed(|status| {
            status["mode"] = json!("observe");
            status["settings"] = sample::settings();
            status["settings"][field] = value;
        })
    };
    let away = sample::changed(|status| {
        status["cluster"]["is_stored"] = json!(true);
        status["cluster"]["away"] = json!("connection refused");
    });
    let lines = reports([
        ("blind", sample::blind()),
        ("no device", sample::no_device()),
        ("observes", sample::observes()),
        ("one flagged", sample::one_flagged()),
        ("by a stored view, and away", away),
        ("no settings", kept("found", json!(false))),
        ("settings say off", kept("mode", json!("off"))),
        ("settings say observe", kept("mode", json!("observe"))),
        ("paused", kept("found", json!(true))),
    ]);
    let told: BTreeSet<Code> = whole
        .iter()
        .chain(&lines)
        .flat_map(|(_, report)| report.health.warnings.iter().map(|warning| warning.code))
        .collect();
    assert_eq!(told.into_iter().collect::<Vec<_>>(), Code::ALL, "a sample for each warning");
    // An uncovered backend has no known device.
    has_all("status", &whole[0].1, &[".uncovered_examples.interface"]);
    let print = |report: &StatusReport, format: Format| status::status(report, format);
    let text = sections(&whole, &[Format::Table, Format::Wide, Format::Json], print)
        + &sections(&lines, &[Format::Table, Format::Wide], print);
    check("status", &text);
}

#[test]
fn what_each_warning_means() {
    let code = Code::BackendsBeyondMaps;
    let of_objects = sample::changed(|status| status["cluster"]["file"] = Value::Null);
    let samples = [
        ("here", Explained::new(code, Ok(sample::full()))),
        ("not here", Explained::new(code, Ok(sample::changed(|_| ())))),
        ("not known", Explained::new(code, Err(gone()))),
        ("of objects", Explained::new(Code::SourceRefused, Ok(of_objects))),
    ];
    let without: Vec<(&str, Explained)> =
        Code::ALL.iter().map(|&code| (code.name(), Explained::new(code, Err(gone())))).collect();
    let print = |explained: &Explained, _: Format| explained.text();
    check("explain", &(sections(&samples, &FORMATS, print) + &sections(&without, &[Format::Table], print)));
}
