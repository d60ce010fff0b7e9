//! `vm-test`: the tests on other kernels, in QEMU.

mod archive;
mod bench;
mod cpio;
mod deb822;
mod guest;
mod kernel;
mod kube;
mod mirror;
mod modules;
mod pair;
mod qemu;
mod queue;
mod sets;
mod verdict;

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
pub(crate) use bench::figures;
use guest::Run;
pub(crate) use kernel::Kernel;
use kernel::Prepared;
pub(crate) use kube::HOST;
use queue::Kind;
use sets::Sets;
use verdict::Told;

use crate::process;
use crate::say;
use crate::setup::{self, Need};
use crate::test::executables::{self, Built, Level};
use crate::test::libtest::Outcome;
use crate::test::local::LONG;
use crate::test::tally::Stage;
use crate::workspace::Workspace;

/// libtest's threads in a guest: tests wait for much of their time, so that one alone would leave its processor idle.
pub(crate) const THREADS: usize = 2;
/// Test files whose subject is files, sockets and the command line: another kernel changes nothing for them.
const SAME_EVERYWHERE: [&str; 3] = ["agent", "cli", "cluster"];
/// A guest that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// What of the matrix is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Empty for all.
    pub(crate) kernels: Vec<Kernel>,
    /// All tests on each kernel, also those that depend on it little.
    pub(crate) whole: bool,
    /// Only tests whose `file::name` contains this.
    pub(crate) test: Option<String>,
    /// Keep logs and initramfs also of a run that passed.
    pub(crate) keep: bool,
    /// libtest's threads in the guest.
    pub(crate) threads: usize,
}

/// The verb by itself.
pub(crate) fn verb(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Vm])?;
    say!("building tests and agent");
    let built = executables::build(workspace, "--test=*")?;
    let stages = matrix(workspace, &built, options)?;
    if stages.is_empty() {
        bail!(
            "no packet, namespace or VM test has `{}` in its `file::name`",
            options.test.as_deref().unwrap_or("")
        );
    }
    Ok(crate::test::finish(&stages))
}

/// All kernels, one stage each, and those beside an API server; then pairs of guests. Nothing where no test is meant.
pub(crate) fn matrix(workspace: &Workspace, built: &Built, options: &Options) -> Result<Vec<Stage>> {
    check_machine()?;
    let filter = options.test.as_deref();
    let alone = [Level::Packets, Level::Namespaces, Level::Vm];
    let whole = options.whole;
    let runs = Sets::alone(runs(built, filter, |level| alone.contains(&level))?, whole);
    let pairs = Sets::pairs(self::runs(built, filter, |level| level == Level::Pair)?, whole);
    let kubes = Sets::beside_kube(self::runs(built, filter, |level| level == Level::VmKubernetes)?, whole);
    let sets = [&runs, &pairs, &kubes];
    let executables: Vec<&PathBuf> =
        sets.iter().flat_map(|sets| sets.all().iter().map(|run| &run.executable)).collect();
    if executables.is_empty() {
        return Ok(Vec::new());
    }
    let folder = workspace.target.join("vm-test");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let base = folder.join("base.cpio");
    say!("packing {} test executables for the guests", executables.len());
    let calls: Vec<(&str, String)> = sets.iter().flat_map(|sets| sets.calls()).collect();
    guest::write(&base, built.programs.iter().chain(executables), &calls, &folder)?;
    let kernels = if options.kernels.is_empty() { Kernel::ALL.to_vec() } else { options.kernels.clone() };
    let bench = Bench { base: &base, folder: &folder, options };
    let beside = kubes.order(&kernels);
    let parts = (!beside.is_empty()).then(|| kube::Parts::new(workspace, built, &folder));
    let mut kinds = vec![Kind::new("vm", runs.order(&kernels), |kernel| bench.one(kernel, &runs))];
    if let Some(Ok(parts)) = &parts {
        kinds.push(Kind::new(kube::NAME, beside, |kernel| bench.kube(kernel, &kubes, parts)));
    }
    let mut stages = queue::run(&kinds);
    drop(kinds);
    if let Some(Err(error)) = parts {
        stages.push(or_failed(kube::NAME.to_owned(), Err(error)));
    }
    for kernel in pairs.order(&kernels) {
        if !process::interrupted() {
            stages.push(or_failed(format!("vm pair {}", kernel.label()), bench.pair(kernel, &pairs)));
        }
    }
    process::check_interrupt()?;
    if !options.keep {
        fs::remove_file(&base)?;
    }
    Ok(stages)
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

/// The executables for a guest with the tests that are expected of them.
fn runs(built: &Built, filter: Option<&str>, wanted: impl Fn(Level) -> bool) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for executable in built.tests.iter().filter(|executable| wanted(executable.level)) {
        if SAME_EVERYWHERE.iter().any(|name| executable.name.starts_with(name)) {
            continue;
        }
        let names = executable.names(filter)?;
        if !names.is_empty() {
            let (title, path) = (executable.title(), executable.path.clone());
            let level = executable.level;
            runs.push(Run { title, executable: path, names, some: filter.is_some(), level });
        }
    }
    Ok(runs)
}

/// What all guests of one call share.
#[derive(Debug, Clone, Copy)]
struct Bench<'a> {
    base: &'a Path,
    folder: &'a Path,
    options: &'a Options,
}

/// What one guest has that others have not.
#[derive(Debug, Clone, Copy, Default)]
struct Boot<'a> {
    parameters: &'a str,
    /// More parts of the initramfs.
    parts: &'a [&'a Path],
    network: &'a [String],
    /// Runs QEMU in its place.
    host: Option<&'a Path>,
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

impl Bench<'_> {
    fn one(&self, kernel: Kernel, sets: &Sets) -> Result<Stage> {
        let started = Instant::now();
        let (set, runs) = sets.on(kernel);
        let prepared = kernel.prepare()?;
        let mut stage = Stage::new(format!("vm {}", kernel.label()));
        stage.note.clone_from(&prepared.release);
        let boot = Boot { parameters: &format!("nodefence.runs={set}"), ..Boot::default() };
        let ran = self.run(&prepared, kernel.label(), &boot)?;
        self.judge(&ran, runs, &mut stage)?;
        stage.took = started.elapsed();
        Ok(stage)
    }

    /// Boots one guest and reads its results to the end.
    fn run(&self, kernel: &Prepared, label: &str, boot: &Boot<'_>) -> Result<Ran> {
        say!("{label}: booting {}", kernel.release);
        let long = if env::var_os(LONG).is_some() { "nodefence.long_tests=1" } else { "" };
        // Of a parameter that stands twice init takes the last.
        let parameters = format!("nodefence.threads={} {long} {}", self.options.threads, boot.parameters);
        let guest = qemu::Guest {
            kernel,
            parts: &[&[self.base], boot.parts].concat(),
            folder: self.folder,
            name: label,
            parameters: &parameters,
            network: boot.network,
            host: boot.host,
        };
        let mut reader = verdict::Reader::default();
        let (mut begun, mut files) = (Instant::now(), Vec::new());
        let log = self.folder.join(format!("{label}.log"));
        let mut out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let ended = guest.boot(LIMIT, |line| {
            // As it comes, for the one who watches.
            let _full_disk = writeln!(out, "{line}");
            match reader.line(line) {
                Some(Told::Test(test, outcome)) => println!("{label:<7} {test} ... {}", word(&outcome)),
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
    fn judge(&self, ran: &Ran, runs: &[Run], stage: &mut Stage) -> Result<()> {
        let Ran { label, reader, log, ended, files } = ran;
        stage.files.extend(files.iter().cloned());
        let (before, again) = (stage.failures.len(), stage.again.len());
        let console = fs::read(&ended.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        reader.judge(runs, &console, stage);
        if !ended.by_itself {
            stage.fail(format!("not done after {} s, killed", LIMIT.as_secs()));
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
        if failed + again > 0 {
            eprintln!("{}", reader.printed());
        }
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
