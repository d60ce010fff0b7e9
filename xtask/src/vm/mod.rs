//! `vm-test`: the tests on other kernels, in QEMU.

mod archive;
mod bench;
mod cpio;
mod deb822;
mod guest;
pub(crate) mod init;
mod kernel;
mod kube;
mod mirror;
mod modules;
mod pair;
mod plan;
mod qemu;
mod queue;
mod verdict;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
pub(crate) use bench::figures;
pub(crate) use kernel::Kernel;
use kernel::Prepared;
pub(crate) use kube::HOST;
use plan::Work;
use verdict::Told;

use crate::process;
use crate::say;
use crate::setup::{self, Need};
use crate::test::executables::{self, Built};
use crate::test::job::Job;
use crate::test::libtest::Outcome;
use crate::test::local::{FUZZ_COUNT, FUZZ_SHORT, LONG};
use crate::test::plan::{Kind, Plan, Scope};
use crate::test::tally::Stage;
use crate::workspace::Workspace;

/// libtest's threads in a guest: tests wait for much of their time, so that one alone would leave its processor idle.
pub(crate) const THREADS: usize = 2;
/// What a guest may take to boot and to end, beside what its executables may.
const BOOT: Duration = Duration::from_secs(10 * 60);
/// Guests at the same time, but for those whose tests are timed; under TCG each keeps one processor busy. With a third one on two processors, even one that
/// mostly waits, the others stand still for longer than leases last.
const AT_ONCE: usize = 2;

/// What of the matrix is wanted, and how.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Empty for all.
    pub(crate) kernels: Vec<Kernel>,
    /// Keep logs and initramfs also of a run that passed.
    pub(crate) keep: bool,
    /// libtest's threads in a guest where they are not for the table to say.
    pub(crate) threads: usize,
    /// With kube-proxy's and the kernel's own periods in place of shorter ones.
    pub(crate) long: bool,
}

/// The verb by itself.
pub(crate) fn verb(workspace: &Workspace, options: &Options, test: Option<&str>) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Vm])?;
    say!("building tests and agent");
    let built = executables::build(workspace, "--test=*", test)?;
    let plan = Plan::new(&built, test, Scope::All)?;
    let stages = matrix(workspace, &built, &plan, options)?;
    if stages.is_empty() {
        bail!("no test that runs in VMs has `{}` in its `file::name`", test.unwrap_or(""));
    }
    crate::test::finish(workspace, &stages)
}

/// What one guest runs.
#[derive(Debug)]
struct Guest {
    kernel: Kernel,
    kind: Kind,
    jobs: Vec<Job>,
    /// Whether it is beside an API server.
    api_server: bool,
}

impl Guest {
    /// Of its stage, its plan and its logs.
    fn name(&self) -> String {
        let kernel = self.kernel.label();
        match self.kind {
            Kind::Plain => format!("vm {kernel}"),
            Kind::Kube => format!("{} {kernel}", kube::NAME),
            Kind::Timed => format!("vm timed {kernel}"),
            Kind::TimedKube => format!("{} timed {kernel}", kube::NAME),
            Kind::Pair => format!("vm pair {kernel}"),
        }
    }

    fn label(&self) -> String {
        self.name().replace(' ', "-")
    }

    /// When it hangs.
    fn limit(&self) -> Duration {
        // Each executable may be run a second time.
        BOOT + Duration::from_millis(self.jobs.iter().map(|job| 2 * job.limit_ms).sum())
    }

    fn plan(&self, long: bool) -> plan::Plan {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let mut environment = vec![pair((FUZZ_COUNT, FUZZ_SHORT))];
        if long {
            environment.push(pair((LONG, "1")));
        }
        let in_guest = |job: &Job| Work::Tests(Job { program: guest::at(&job.program), ..job.clone() });
        plan::Plan { environment, work: self.jobs.iter().map(in_guest).collect() }
    }
}

/// All kernels: guests that bear another one beside them, those whose tests are timed, pairs. Nothing where no test is meant.
pub(crate) fn matrix(
    workspace: &Workspace,
    built: &Built,
    plan: &Plan<'_>,
    options: &Options,
) -> Result<Vec<Stage>> {
    check_machine()?;
    let kernels = if options.kernels.is_empty() { &Kernel::ALL[..] } else { &options.kernels };
    let guests: Vec<Guest> = kernels.iter().flat_map(|kernel| guests(plan, *kernel, options)).collect();
    if guests.is_empty() {
        return Ok(Vec::new());
    }
    let folder = workspace.target.join("vm-test");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let base = folder.join("base.cpio");
    let mut executables: Vec<&PathBuf> =
        guests.iter().flat_map(|guest| guest.jobs.iter().map(|job| &job.program)).collect();
    executables.sort();
    executables.dedup();
    say!("packing {} test executables for the guests", executables.len());
    let plans: Vec<_> = guests.iter().map(|guest| (guest.label(), guest.plan(options.long))).collect();
    guest::write(&base, built.programs.iter().chain(executables), &plans, &folder)?;
    let parts = guests.iter().any(|guest| guest.api_server);
    let parts = parts.then(|| kube::Parts::new(workspace, built, &folder));
    let matrix = Matrix { base: &base, folder: &folder, options };
    let run = |guest: &Guest| match (&guest.kind, &parts) {
        (Kind::Pair, _) => matrix.pair(guest),
        (_, Some(Err(error))) if guest.api_server => bail!("{error:#}"),
        (_, Some(Ok(parts))) if guest.api_server => matrix.one(guest, Some(parts)),
        _ => matrix.one(guest, None),
    };
    let (alone, beside): (Vec<&Guest>, Vec<&Guest>) =
        guests.iter().partition(|guest| matches!(guest.kind, Kind::Timed | Kind::TimedKube | Kind::Pair));
    let mut stages = queue::run(&beside, AT_ONCE, run);
    stages.extend(queue::run(&alone, 1, run));
    process::check_interrupt()?;
    if !options.keep {
        fs::remove_file(&base)?;
    }
    Ok(stages)
}

/// The guests of a kernel.
fn guests(plan: &Plan<'_>, kernel: Kernel, options: &Options) -> Vec<Guest> {
    let of_kind = |(kind, rows): (Kind, Vec<crate::test::plan::Planned<'_>>)| {
        let api_server = rows.iter().any(|row| row.file.is_some_and(|file| file.needs_kube_proxy()));
        let threads = match kind {
            Kind::Plain | Kind::Pair => options.threads,
            // They share the server, or the time.
            Kind::Kube | Kind::Timed | Kind::TimedKube => 1,
        };
        let job = |row: crate::test::plan::Planned<'_>| Job { threads: Some(threads), ..row.job };
        Guest { kernel, kind, jobs: rows.into_iter().map(job).collect(), api_server }
    };
    plan.guests(kernel).into_iter().map(of_kind).collect()
}

fn check_machine() -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("VMs boot this machine's own programs, and kernels for amd64: they need an x86_64 machine");
    }
    Ok(())
}

fn or_failed(name: String, stage: Result<Stage>) -> Stage {
    stage.unwrap_or_else(|error| {
        let mut stage = Stage::new(name);
        stage.fail(format!("{error:#}"));
        stage
    })
}

/// What all guests of one call share.
#[derive(Debug, Clone, Copy)]
struct Matrix<'a> {
    base: &'a Path,
    folder: &'a Path,
    options: &'a Options,
}

/// What one guest has that others have not.
#[derive(Debug, Clone, Copy)]
struct Boot<'a> {
    parameters: &'a str,
    limit: Duration,
    /// More parts of the initramfs.
    parts: &'a [&'a Path],
    network: &'a [String],
    /// Runs QEMU in its place.
    host: Option<&'a Path>,
}

impl<'a> Boot<'a> {
    fn new(guest: &Guest, parameters: &'a str) -> Self {
        Self { parameters, limit: guest.limit(), parts: &[], network: &[], host: None }
    }
}

/// A guest that came to its end, or did not.
struct Ran {
    label: String,
    reader: verdict::Reader,
    log: PathBuf,
    ended: qemu::Ended,
    /// How long each executable ran.
    files: Vec<(String, Duration)>,
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

    /// Boots one guest and reads its results to the end.
    fn run(&self, kernel: &Prepared, label: &str, boot: &Boot<'_>) -> Result<Ran> {
        say!("{label}: booting {}", kernel.release);
        let guest = qemu::Guest {
            kernel,
            parts: &[&[self.base], boot.parts].concat(),
            folder: self.folder,
            name: label,
            parameters: boot.parameters,
            network: boot.network,
            host: boot.host,
        };
        let mut reader = verdict::Reader::default();
        let (mut begun, mut files) = (Instant::now(), Vec::new());
        let log = self.folder.join(format!("{label}.log"));
        let mut out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let ended = guest.boot(boot.limit, |line| {
            // As it comes, for the one who watches.
            let _full_disk = writeln!(out, "{line}");
            match reader.line(line) {
                Some(Told::Test(test, outcome)) => println!("{label:<7} {test} ... {}", word(&outcome)),
                Some(Told::Again(why)) => say!("{label}: once more: {why}"),
                Some(Told::Ended(title)) => {
                    let took = begun.elapsed();
                    say!("{label}: {title}: {:.1} s", took.as_secs_f64());
                    files.push((title, took));
                    begun = Instant::now();
                }
                None => {}
            }
        })?;
        Ok(Ran { label: label.to_owned(), reader, log, ended, files })
    }

    /// Adds a guest's results to `stage`; keeps its logs where something failed.
    fn judge(&self, ran: &Ran, jobs: &[Job], stage: &mut Stage) -> Result<()> {
        let Ran { label, reader, log, ended, files } = ran;
        stage.files.extend(files.iter().cloned());
        let (before, again) = (stage.failures.len(), stage.again.len());
        let console = fs::read(&ended.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        reader.judge(jobs, &console, stage);
        if !ended.by_itself {
            stage.fail("the guest hung, and was killed");
        }
        if console.is_empty() {
            stage.fail("the kernel said nothing at all");
        }
        let failed = stage.failures.len() - before;
        let again = stage.again.len() - again;
        if failed + again == 0 && !self.options.keep {
            fs::remove_file(&ended.console)?;
            fs::remove_file(log)?;
            return Ok(());
        }
        stage.show();
        say!(
            "{label}: {failed} failed, {again} only before they passed; results in {}, kernel's log in {}",
            log.display(),
            ended.console.display()
        );
        Ok(())
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Ignored => "ignored",
    }
}
