//! `test`: everything that CI runs, stage by stage.

pub(crate) mod executables;
pub(crate) mod libtest;
pub(crate) mod local;
pub(crate) mod tally;

mod checks;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use executables::{Built, Level};
use tally::Stage;

use crate::setup::{self, Need};
use crate::workspace::Workspace;
use crate::{assets, process, say, vm};

/// What of it is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// No VMs, no real Kubernetes, a short fuzz, no test that waits for minutes.
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
        stages.push(kubernetes(workspace, &built, filter)?);
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

/// The tests beside real parts of Kubernetes. Where those cannot be had the stage fails, and the others run.
fn kubernetes(workspace: &Workspace, built: &Built, filter: Option<&str>) -> Result<Stage> {
    let name = "kubernetes";
    let wanted = built.tests.iter().filter(|executable| executable.level == Level::Kubernetes);
    let mut names = wanted.map(|executable| executable.names(filter));
    if !names.any(|names| names.is_ok_and(|names| !names.is_empty())) {
        return Ok(Stage::new(name));
    }
    let started = Instant::now();
    let mut stage = match assets::ensure(workspace) {
        Ok(_) => local::stage(name, built, Level::Kubernetes, filter, false)?,
        Err(error) => {
            process::check_interrupt()?;
            let mut stage = Stage::new(name);
            stage.fail(format!("{error:#}"));
            stage
        }
    };
    stage.took = started.elapsed();
    Ok(stage)
}

/// Prints the summary; the exit code says whether anything failed.
pub(crate) fn finish(stages: &[tally::Stage]) -> ExitCode {
    print!("{}", tally::summary(stages));
    if tally::failed(stages) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
