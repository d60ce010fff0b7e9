//! `test`: runs everything that CI runs, stage by stage.

pub(crate) mod executables;
pub(crate) mod job;
pub(crate) mod libtest;
pub(crate) mod local;
pub(crate) mod plan;
pub(crate) mod results;
pub(crate) mod table;
pub(crate) mod tally;
pub(crate) mod ticker;

pub(crate) mod checks;
mod documentation;
mod measured;

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use plan::{Place, Plan, Scope};
use tally::Stage;

use crate::setup::need::Need;
use crate::workspace::Workspace;
use crate::{assets, cluster, image, process, setup, vm};

/// Which tests to run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) scope: Scope,
    /// Run only tests whose `file::name` contains this, and no checks.
    pub(crate) filter: Option<String>,
}

/// Runs all stages, also after a failed one, and prints a summary.
pub(crate) fn verb(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let filter = options.filter.as_deref();
    table::is_complete(&workspace.root.join("tests/tests"))?;
    let scope = options.scope;
    let mut needs = vec![Need::Build, Need::Namespaces];
    if filter.is_none() {
        needs.push(Need::Deny);
    }
    if scope != Scope::Quick {
        needs.push(Need::Vm);
    }
    let has_cluster = filter.is_none() && scope != Scope::Quick;
    if has_cluster {
        needs.extend(cluster::NEEDS);
    }
    setup::ensure(workspace, &needs)?;
    let mut stages = vec![Stage::since("setup", started)];
    if filter.is_none() {
        stages.extend(checks::short(workspace)?);
    }
    let (built, took) = executables::build(workspace, "--tests", filter)?;
    stages.push(took);
    let plan = Plan::new(&built, filter, scope)?;
    stages.push(local::unit(&plan, scope)?);
    if filter.is_none() {
        stages.extend(documentation::run(workspace)?);
    }
    let kubernetes = kubernetes(workspace, &plan)?;
    let there = kubernetes.as_ref().is_none_or(|stage| stage.failures.is_empty());
    stages.extend(kubernetes);
    let (native, mut beside) = thread::scope(|threads| {
        let beside = threads.spawn(|| beside(workspace, filter.is_none(), has_cluster));
        let native = local::native(&plan, scope, there);
        (native, beside.join().unwrap_or_else(|_| bail!("the thread of the lints panicked")))
    });
    stages.extend(native?);
    if let Ok(beside) = &mut beside {
        beside.iter_mut().for_each(Stage::show);
    }
    stages.extend(beside?);
    if scope != Scope::Quick {
        let long = scope == Scope::All;
        let options = vm::Options { kernels: Vec::new(), keep: false, threads: vm::THREADS, long };
        stages.extend(vm::matrix(workspace, &built, &plan, &options)?);
    }
    if has_cluster {
        stages.push(cluster::stage()?);
    }
    if filter.is_none() && scope == Scope::All {
        stages.push(image::stage()?);
    }
    if let Some(part) = filter.filter(|_| stages.iter().all(|stage| stage.passed + stage.failures.len() == 0))
    {
        let left_out = if scope == Scope::Quick {
            "; `--quick` leaves out VMs, Kubernetes and what is slow"
        } else {
            ""
        };
        bail!("no test of this run has `{part}` in its `file::name`{left_out}");
    }
    results::finish(workspace, &stages, started)
}

/// Does what needs a processor and no quiet, while the tests of this machine wait for most of their time.
fn beside(workspace: &Workspace, has_lints: bool, has_cluster: bool) -> Result<Vec<Stage>> {
    let mut stages = Vec::new();
    if has_lints {
        stages.push(checks::lints(workspace)?);
    }
    if has_cluster {
        stages.push(cluster::prepare()?);
    }
    for stage in &mut stages {
        "beside those above".clone_into(&mut stage.note);
    }
    Ok(stages)
}

/// Builds or finds the real Kubernetes programs, if a test on this machine needs them. If that fails, this stage fails, and the tests that do not
/// need them run all the same.
fn kubernetes(workspace: &Workspace, plan: &Plan<'_>) -> Result<Option<Stage>> {
    let rows = plan.at(Place::Native);
    if !rows.iter().any(|row| row.file.is_some_and(table::File::needs_kube_proxy)) {
        return Ok(None);
    }
    let started = Instant::now();
    let made = assets::ensure(workspace, assets::Set::Tests);
    process::check_interrupt()?;
    let mut stage = Stage::since("assets", started);
    if let Err(error) = made {
        stage.fail(format!("{error:#}"));
    }
    Ok(Some(stage))
}
