//! The end of a run: its summary, and the results file. The file is for programs, and has the figures and the output of passing tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::measured::Figure;
use super::tally::{self, Stage};
use crate::say::say;
use crate::workspace::Workspace;

/// Writes the results file and prints the summary. The summary is printed also if the file cannot be written. The exit code says whether anything
/// failed. The run began at `started`.
pub(crate) fn finish(workspace: &Workspace, stages: &[Stage], started: Instant) -> Result<ExitCode> {
    let took = started.elapsed();
    let written = write(&workspace.target.join("test"), stages, took);
    if let Ok(file) = &written {
        say!("results: {}", file.display());
    }
    print!("{}", tally::summary(stages, took));
    written?;
    Ok(if tally::failed(stages) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the results file, and returns its path. A rename puts the file in place, so that no reader finds half of it.
fn write(folder: &Path, stages: &[Stage], took: Duration) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let file = folder.join("results.json");
    let stages: Vec<Value> = stages.iter().map(stage).collect();
    let text = serde_json::to_string_pretty(&json!({ "seconds": took.as_secs_f64(), "stages": stages }))?;
    let aside = folder.join(format!("results-{}", std::process::id()));
    let put = fs::write(&aside, text).and_then(|()| fs::rename(&aside, &file));
    if put.is_err() {
        let _nothing_there = fs::remove_file(&aside);
    }
    put.with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn stage(stage: &Stage) -> Value {
    let files = stage.files.iter().map(|(file, took)| json!({"file": file, "seconds": took.as_secs_f64()}));
    let figures = stage.figures.iter().map(|(file, figure)| {
        let Figure { test, name, value, unit, promised, still } = figure;
        json!({
            "file": file, "test": test, "name": name, "value": value, "unit": unit, "promised": promised, "still": still,
        })
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
