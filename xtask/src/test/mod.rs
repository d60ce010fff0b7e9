//! `test`: everything that CI runs, stage by stage.

pub(crate) mod executables;
pub(crate) mod libtest;
pub(crate) mod local;
pub(crate) mod tally;

mod checks;

use std::process::ExitCode;

use anyhow::{Result, bail};
use executables::{Built, Level};
use local::Local;
use tally::Stage;

use crate::setup::{self, Need};
use crate::workspace::Workspace;
use crate::{assets, process, say, vm};

/// What of it is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// No VMs, no real Kubernetes, a short fuzz, no waits of minutes.
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
    let built = executables::build(workspace, "--tests")?;
    let local = Local { built: &built, filter, quick: options.quick };
    stages.push(local.stage("unit", Level::Unit)?);
    if filter.is_none() {
        stages.push(local::documentation(workspace)?);
    }
    stages.push(local.stage("packets", Level::Packets)?);
    let mut levels = vec![("namespaces", Level::Namespaces)];
    let mut refused = None;
    if !options.quick {
        match kubernetes(workspace, &built, filter) {
            Ok(()) => levels.push((KUBERNETES, Level::Kubernetes)),
            Err(error) => {
                process::check_interrupt()?;
                let mut stage = Stage::new(KUBERNETES);
                stage.fail(format!("{error:#}"));
                refused = Some(stage);
            }
        }
    }
    stages.extend(local.stages(&levels)?);
    stages.extend(refused);
    if !options.quick {
        let matrix = vm::Options {
            kernels: Vec::new(),
            whole: false,
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

const KUBERNETES: &str = "kubernetes";

/// Makes the real parts of Kubernetes ready, where a test wants them. Where they cannot be had that stage fails, and the others run.
fn kubernetes(workspace: &Workspace, built: &Built, filter: Option<&str>) -> Result<()> {
    for executable in built.tests.iter().filter(|executable| executable.level == Level::Kubernetes) {
        if !executable.names(filter)?.is_empty() {
            return assets::ensure(workspace).map(drop);
        }
    }
    Ok(())
}

/// Prints the summary; the exit code says whether anything failed.
pub(crate) fn finish(stages: &[tally::Stage]) -> ExitCode {
    print!("{}", tally::summary(stages));
    if tally::failed(stages) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
