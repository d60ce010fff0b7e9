//! `test`: everything that CI runs, stage by stage.

pub(crate) mod executables;
pub(crate) mod libtest;
pub(crate) mod local;
pub(crate) mod tally;

mod checks;

use std::process::ExitCode;

use anyhow::{Result, bail};
use executables::Level;

use crate::say;
use crate::setup::{self, Need};
use crate::vm;
use crate::workspace::Workspace;

/// What of it is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// No VMs, a short fuzz, no test that waits for minutes.
    pub(crate) quick: bool,
    /// Only tests whose `file::name` contains this, and no checks.
    pub(crate) filter: Option<String>,
}

/// Runs all stages, also after a failed one, and sums up.
pub(crate) fn verb(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let filter = options.filter.as_deref();
    let mut needs = vec![Need::Build, Need::Namespaces];
    if filter.is_none() {
        needs.push(Need::Deny);
    }
    if !options.quick {
        needs.push(Need::Vm);
    }
    setup::ensure(workspace, &needs)?;
    let mut stages = Vec::new();
    if filter.is_none() {
        stages.extend(checks::all(workspace)?);
    }
    say!("building tests and agent");
    let built = executables::build(workspace, &["--workspace"])?;
    stages.push(local::stage("unit", &built, Level::Unit, filter, options.quick)?);
    if filter.is_none() {
        stages.push(local::documentation(workspace)?);
    }
    stages.push(local::stage("packets", &built, Level::Packets, filter, options.quick)?);
    stages.push(local::stage("namespaces", &built, Level::Namespaces, filter, options.quick)?);
    if !options.quick {
        let matrix = vm::Options {
            kernels: Vec::new(),
            test: options.filter.clone(),
            keep: false,
            threads: vm::THREADS,
        };
        stages.extend(vm::matrix(workspace, &built, &matrix)?);
    }
    if let Some(part) = filter.filter(|_| stages.iter().all(|stage| stage.passed + stage.failures.len() == 0))
    {
        bail!("no test has `{part}` in its `file::name`");
    }
    Ok(finish(&stages))
}

/// Prints the summary; the exit code says whether anything failed.
pub(crate) fn finish(stages: &[tally::Stage]) -> ExitCode {
    print!("{}", tally::summary(stages));
    if tally::failed(stages) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
