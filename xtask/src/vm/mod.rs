//! `vm-test`: runs the tests on other kernels, in QEMU.

mod archive;
mod bench;
pub(crate) mod cpio;
mod deb822;
pub(crate) mod guest;
pub(crate) mod init;
mod kernel;
mod kube;
mod matrix;
mod mirror;
mod modules;
pub(crate) mod packed;
mod pair;
pub(crate) mod plan;
pub(crate) mod qemu;
mod queue;
mod verdict;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
pub(crate) use bench::figures;
pub(crate) use kernel::Kernel;
pub(crate) use kube::HOST;
pub(crate) use matrix::Options;
use matrix::{Boot, Guest, Matrix};

use crate::setup::need::Need;
use crate::test::executables::{self, Built};
use crate::test::job::Job;
use crate::test::plan::{Plan, Scope};
use crate::test::results;
use crate::test::table::{self, Kind};
use crate::test::tally::Stage;
use crate::workspace::Workspace;
use crate::{cache, process, setup};

/// The number of libtest's threads in a guest. Tests wait for much of their time, and one test alone would leave the processor idle.
pub(crate) const THREADS: usize = 2;
/// How many guests without timed tests run at the same time. Under TCG each guest keeps one processor busy. If a third guest runs on two processors,
/// the others stand still for longer than leases last, even if the third one mostly waits.
const AT_ONCE: usize = 2;

/// Runs the verb `vm-test`.
pub(crate) fn verb(workspace: &Workspace, options: &Options, test: Option<&str>) -> Result<ExitCode> {
    let started = Instant::now();
    table::is_complete(&workspace.root.join("tests/tests"))?;
    setup::ensure(workspace, &[Need::Build, Need::Vm])?;
    let mut stages = vec![Stage::since("setup", started)];
    let (built, took) = executables::build(workspace, "--test=*", test)?;
    stages.push(took);
    let plan = Plan::new(&built, test, Scope::All)?;
    let guests = matrix(workspace, &built, &plan, options)?;
    if guests.is_empty() {
        bail!("no test that runs in VMs has `{}` in its `file::name`", test.unwrap_or(""));
    }
    stages.extend(guests);
    results::finish(workspace, &stages, started)
}

/// Runs the guests of all kernels. Guests that may run beside another one come first. Guests with timed tests, and pairs, follow one at a time.
/// Returns no stage if no test is to run.
pub(crate) fn matrix(
    workspace: &Workspace,
    built: &Built,
    plan: &Plan<'_>,
    options: &Options,
) -> Result<Vec<Stage>> {
    qemu::check_machine()?;
    let kernels = if options.kernels.is_empty() { &Kernel::ALL[..] } else { &options.kernels };
    let guests: Vec<Guest> = kernels.iter().flat_map(|kernel| guests(plan, *kernel, options)).collect();
    if guests.is_empty() {
        return Ok(Vec::new());
    }
    let folder = workspace.target.join("vm-test");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Guests of two runs would use the same files, so one run waits for the other.
    let lock = folder.join("lock");
    let _lock = cache::lock(&lock, "another run boots guests from this target folder: waiting for it")?;
    let started = Instant::now();
    let base = folder.join("base.cpio");
    let plans: Vec<_> = guests.iter().map(|guest| (guest.label(), guest.plan(options.long))).collect();
    let init = guest::init()?;
    let everywhere: Vec<&PathBuf> = built.programs.iter().chain([&init]).collect();
    let tests = guests.iter().flat_map(|guest| guest.jobs.iter().map(|job| &job.program));
    let ours: BTreeSet<&PathBuf> = everywhere.iter().copied().chain(tests).collect();
    guest::write(&base, ours.iter().copied(), &plans)?;
    let (packed, stage) = packed::pack(&folder, ours, guest::places(&init), started)?;
    let parts = guests.iter().any(|guest| guest.api_server);
    let parts = parts.then(|| kube::Parts::new(workspace, built, &folder));
    let matrix = Matrix { base: &base, everywhere: &everywhere, packed: &packed, folder: &folder, options };
    let run = |guest: &Guest| match (&guest.kind, &parts) {
        (Kind::Pair, _) => matrix.pair(guest),
        (_, Some(Err(error))) if guest.api_server => bail!("{error:#}"),
        (_, Some(Ok(parts))) if guest.api_server => matrix.one(guest, Some(parts)),
        _ => matrix.one(guest, None),
    };
    let (alone, beside): (Vec<&Guest>, Vec<&Guest>) =
        guests.iter().partition(|guest| matches!(guest.kind, Kind::Timed | Kind::TimedKube | Kind::Pair));
    let mut stages = vec![stage];
    stages.extend(queue::run(&beside, AT_ONCE, run));
    stages.extend(queue::run(&alone, 1, run));
    process::check_interrupt()?;
    if !options.keep {
        // An error is ignored: a file that remains does not change the results.
        let _leftover = fs::remove_file(&base);
    }
    Ok(stages)
}

/// The guests of a kernel.
fn guests(plan: &Plan<'_>, kernel: Kernel, options: &Options) -> Vec<Guest> {
    let of_kind = |(kind, rows): (Kind, Vec<crate::test::plan::Planned<'_>>)| {
        let api_server = rows.iter().any(|row| row.file.is_some_and(|file| file.needs_kube_proxy()));
        let threads = match kind {
            Kind::Plain | Kind::Pair => options.threads,
            // Tests here share the API server, or check times, so they run one after the other.
            Kind::Kube | Kind::Timed | Kind::TimedKube => 1,
        };
        let job = |row: crate::test::plan::Planned<'_>| Job { threads: Some(threads), ..row.job };
        Guest { kernel, kind, jobs: rows.into_iter().map(job).collect(), api_server }
    };
    plan.guests(kernel).into_iter().map(of_kind).collect()
}

impl Matrix<'_> {
    fn one(&self, guest: &Guest, parts: Option<&kube::Parts<'_>>) -> Result<Stage> {
        let started = Instant::now();
        let prepared = guest.kernel.prepare()?;
        let mut stage = Stage::new(guest.name());
        stage.note.clone_from(&prepared.release);
        let plan = format!("{}={}", plan::PARAMETER, guest.label());
        let ran = match parts {
            None => self.run(&prepared, &guest.label(), &Boot::new(guest, &plan))?,
            Some(parts) => parts.run(self, &prepared, guest, &plan)?,
        };
        self.judge(&ran, &guest.jobs, &mut stage)?;
        stage.took = started.elapsed();
        Ok(stage)
    }
}
