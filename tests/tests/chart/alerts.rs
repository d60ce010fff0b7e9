//! The chart's alerts, as promtool sees them.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::kube::assets::asset;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    helm::{ALL, chart, render},
    objects::find,
};

/// Runs promtool in a folder.
fn promtool(folder: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(asset("promtool")?).args(args).current_dir(folder).output()?;
    let printed =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "promtool {}: {}\n{printed}", args.join(" "), output.status);
    Ok(printed)
}

/// The rules of the chart with these values, in the form of Prometheus' own files.
fn rules(values: &[&str]) -> Result<Value> {
    let mut args = ALL.to_vec();
    args.extend(values);
    let rendered = render(&args)?;
    Ok(json!({"groups": find(&rendered, "PrometheusRule", "nodefence")?["spec"]["groups"]}))
}

/// The names of the alerts.
fn names(rules: &Value) -> Result<Vec<String>> {
    let rules = rules["groups"][0]["rules"].as_array().context("no rules")?;
    rules.iter().map(|rule| rule["alert"].as_str().map(str::to_owned).context("no name")).collect()
}

/// The alerts that have a toggle.
fn toggles() -> Result<Vec<String>> {
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(chart().join("values.yaml"))?)?;
    Ok(values["alerts"]["rules"].as_object().context("no toggles")?.keys().cloned().collect())
}

#[test]
fn each_alert_holds_when_it_should_and_not_before() -> Result<()> {
    let folder = TempDir::with_prefix("nodefence-alerts-")?;
    let rules = rules(&[])?;
    // JSON is YAML too.
    fs::write(folder.path().join("rules.yaml"), rules.to_string())?;
    let checked = promtool(folder.path(), &["check", "rules", "rules.yaml"])?;
    let names = names(&rules)?;
    ensure!(checked.contains(&format!("SUCCESS: {} rules found", names.len())), "{checked}");
    let tests = include_str!("alerts.yaml");
    for name in &names {
        let both = [format!("alertname: {name}\n"), format!("alertname: {name} # not yet\n")];
        ensure!(both.iter().all(|line| tests.contains(line)), "{name} has no test of both kinds");
    }
    fs::write(folder.path().join("tests.yaml"), tests)?;
    let tested = promtool(folder.path(), &["test", "rules", "tests.yaml"])?;
    ensure!(tested.contains("SUCCESS"), "{tested}");
    Ok(())
}

#[test]
fn each_alert_has_a_toggle_that_removes_it_alone() -> Result<()> {
    let mut all = names(&rules(&[])?)?;
    let mut toggles = toggles()?;
    for name in &toggles {
        let left = names(&rules(&["--set", &format!("alerts.rules.{name}=false")])?)?;
        let wanted: Vec<String> = all.iter().filter(|alert| *alert != name).cloned().collect();
        ensure!(left == wanted && left.len() + 1 == all.len(), "{name}: {left:?}");
    }
    let none: Vec<String> = toggles.iter().map(|name| format!("alerts.rules.{name}=false")).collect();
    ensure!(names(&rules(&["--set", &none.join(",")])?)?.is_empty());
    all.sort();
    toggles.sort();
    ensure!(all == toggles, "{all:?} {toggles:?}");
    Ok(())
}

/// An upgrade with the values of an earlier chart has no toggle for an alert that is new.
#[test]
fn an_alert_without_a_toggle_is_there() -> Result<()> {
    let all = names(&rules(&[])?)?;
    for missing in ["alerts.rules.NodefenceBlind=null", "alerts.rules=null"] {
        let left = names(&rules(&["--set", missing])?)?;
        ensure!(left == all, "{missing}: {left:?}");
    }
    Ok(())
}
