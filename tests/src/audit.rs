//! Runs `nodefence audit` and `nodefence repair`, and checks their reports.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Agent, Family, emulated, watch::wait_within};

/// The value of `--fault-after` in tests that wait for faults. kube-proxy's own period would take a minute.
pub const FAULT_AFTER: &str = "2s";
/// A difference is a fault after at most this time. One reading finds the difference, and a reading after [`FAULT_AFTER`] finds it again. Readings are half a
/// second apart (`agent/watched.rs`).
const FOUND: Duration = Duration::from_secs(3);
/// How many readings a fault needs on an emulated processor, where a reading beside others takes seconds: the two of [`FOUND`], the two that are under way when
/// these are due, and the `audit` that shows the fault. An `audit` takes as long as a reading.
const READINGS: u32 = 5;
/// The longest time that a fault may take on an emulated processor.
const FOUND_EMULATED: Duration = Duration::from_secs(10);

/// Both IP versions.
pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// The outcome of an `audit`.
#[derive(Debug)]
pub struct Audit {
    /// The exit code.
    pub code: i32,
    /// The report.
    pub report: Value,
}

impl Audit {
    /// Runs an audit.
    ///
    /// # Errors
    /// Fails if there is no report, or if the exit code contradicts the report.
    pub fn of(agent: &Agent) -> Result<Self> {
        let output = agent.cli(&["audit", "-o", "json"])?;
        let report = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{}\n{}", String::from_utf8_lossy(&output.stderr), agent.log()))?;
        let this = Self { code: output.status.code().context("killed")?, report };
        let faults = this.report["faults"].as_u64().context("no number of faults")?;
        ensure!(this.code == if faults > 0 { 5 } else { 0 }, "exit code {} with {faults} faults", this.code);
        for row in this.rows() {
            let complete = row["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty())
                && row["age_seconds"].is_u64();
            ensure!(complete, "{row}");
        }
        Ok(this)
    }

    fn rows(&self) -> impl Iterator<Item = &Value> {
        self.report["differences"].as_array().into_iter().flatten()
    }

    /// The differences in this state, each as its kind and its subject.
    pub fn in_state(&self, state: &str) -> Vec<String> {
        let text = |row: &Value| {
            format!(
                "{} {}",
                row["kind"].as_str().unwrap_or_default(),
                row["subject"].as_str().unwrap_or_default()
            )
        };
        let mut all: Vec<String> = self.rows().filter(|row| row["state"] == state).map(text).collect();
        all.sort();
        all
    }

    /// The row of the difference with this kind and subject.
    pub fn row(&self, kind_and_subject: &str) -> Option<&Value> {
        self.rows().find(|row| {
            kind_and_subject
                == format!(
                    "{} {}",
                    row["kind"].as_str().unwrap_or_default(),
                    row["subject"].as_str().unwrap_or_default()
                )
        })
    }

    /// The reason why the audit does not look at this kind. `None` where it does.
    pub fn not_looked_at(&self, kind: &str) -> Option<&str> {
        let kinds = self.report["kinds"].as_array().into_iter().flatten();
        kinds.filter(|row| row["kind"] == kind).find_map(|row| row["not_looked_at"].as_str())
    }
}

/// Waits until the faults are exactly these, within the promised time. The differences must exist already.
///
/// # Errors
/// Fails if the faults are others. The error includes all differences and the agent's log.
pub fn wait_faults(agent: &Agent, faults: &[&str]) -> Result<Audit> {
    let mut faults: Vec<String> = faults.iter().map(|&fault| fault.to_owned()).collect();
    faults.sort();
    let are = || Audit::of(agent).is_ok_and(|audit| audit.in_state("fault") == faults);
    let begun = Instant::now();
    Audit::of(agent)?;
    let measured = (FOUND + begun.elapsed() * READINGS).min(FOUND_EMULATED);
    let found = if emulated() { measured } else { FOUND };
    wait_within("these faults and no others", found, begun, are).with_context(|| {
        let last = Audit::of(agent).map(|audit| format!("{:#}", audit.report["differences"]));
        format!("expected {faults:#?}; found {}\n{}", last.unwrap_or_default(), agent.log())
    })?;
    Audit::of(agent)
}

/// Runs a repair. Returns how often each outcome came, by kind and outcome.
///
/// # Errors
/// Fails if the agent does not answer, or if the exit code contradicts the report.
pub fn repair(agent: &Agent, args: &[&str]) -> Result<BTreeMap<String, usize>> {
    let output = agent.cli(&[&["repair", "-o", "json"], args].concat())?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}\n{}", String::from_utf8_lossy(&output.stderr), agent.log()))?;
    let mut counts = BTreeMap::new();
    for row in report["rows"].as_array().context("no rows")? {
        let kind = row["kind"].as_str().context("kind")?;
        let outcome = row["outcome"].as_str().context("outcome")?;
        ensure!(row["action"].as_str().is_some_and(|action| !action.is_empty()), "{row}");
        *counts.entry(format!("{kind} {outcome}")).or_default() += 1;
    }
    let failed = counts.keys().any(|key| key.ends_with(" failed"));
    ensure!(output.status.code() == Some(i32::from(failed)), "{report:#}\n{}", agent.log());
    Ok(counts)
}

/// Outcomes in the form that [`repair`] returns, for comparisons.
pub fn outcomes<const N: usize>(all: [(&str, usize); N]) -> BTreeMap<String, usize> {
    all.into_iter().map(|(key, count)| (key.to_owned(), count)).collect()
}
