//! The results file: what a run found, for programs; figures and what passing tests printed among it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::measured::Figure;
use super::tally::Stage;
use crate::workspace::Workspace;

/// Writes it; gives where.
pub(crate) fn write(workspace: &Workspace, stages: &[Stage]) -> Result<PathBuf> {
    let folder = workspace.target.join("test");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let file = folder.join("results.json");
    let stages: Vec<Value> = stages.iter().map(stage).collect();
    let text = serde_json::to_string_pretty(&json!({ "stages": stages }))?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn stage(stage: &Stage) -> Value {
    let files = stage.files.iter().map(|(file, took)| json!({"file": file, "seconds": took.as_secs_f64()}));
    let figures = stage.figures.iter().map(|(file, figure)| {
        let Figure { test, name, value, unit } = figure;
        json!({"file": file, "test": test, "name": name, "value": value, "unit": unit})
    });
    let said = stage.said.iter().map(|(test, text)| json!({"test": test, "printed": text}));
    json!({
        "name": stage.name,
        "passed": stage.passed,
        "failures": stage.failures,
        "again": stage.again,
        "note": stage.note,
        "seconds": stage.took.as_secs_f64(),
        "files": files.collect::<Vec<_>>(),
        "figures": figures.collect::<Vec<_>>(),
        "printed": said.collect::<Vec<_>>(),
    })
}
