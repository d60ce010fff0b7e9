//! `vm-test`: the tests on other kernels, in QEMU.

mod archive;
mod cpio;
mod deb822;
mod guest;
mod kernel;
mod mirror;
mod modules;
mod qemu;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use guest::Run;
pub(crate) use kernel::Kernel;

use crate::process;
use crate::say;
use crate::setup::{self, Need};
use crate::test::executables::{self, Built, Level};
use crate::test::libtest::Outcome;
use crate::test::tally::Stage;
use crate::workspace::Workspace;

/// VMs at the same time; each has two processors.
const AT_ONCE: usize = 2;
/// A guest that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// What of the matrix is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Empty for all.
    pub(crate) kernels: Vec<Kernel>,
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
    let built = executables::build(workspace)?;
    let stages = matrix(workspace, &built, options)?;
    Ok(crate::test::finish(&stages))
}

/// All kernels, two at a time, one stage each.
pub(crate) fn matrix(workspace: &Workspace, built: &Built, options: &Options) -> Result<Vec<Stage>> {
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "the VM tests boot this machine's own programs, and kernels for amd64: they need an x86_64 machine"
        );
    }
    let runs = runs(built, options.test.as_deref())?;
    if runs.is_empty() {
        match &options.test {
            Some(part) => bail!("no packet, namespace or VM test has `{part}` in its `file::name`"),
            None => bail!("there is no packet, namespace or VM test"),
        }
    }
    let folder = workspace.target.join("vm-test");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let base = folder.join("base.cpio");
    say!("packing {} test executables for the guests", runs.len());
    guest::write(&base, built, &runs, &folder)?;
    let kernels = if options.kernels.is_empty() { Kernel::ALL.to_vec() } else { options.kernels.clone() };
    let queue = Mutex::new(kernels.iter().copied().enumerate());
    let stages = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(kernels.len()) {
            scope.spawn(|| {
                while let Some((at, kernel)) = next(&queue) {
                    let stage = one(kernel, &base, &runs, &folder, options).unwrap_or_else(|error| {
                        let mut stage = Stage::new(format!("vm {}", kernel.label()));
                        stage.fail(format!("{error:#}"));
                        stage
                    });
                    if let Ok(mut stages) = stages.lock() {
                        stages.push((at, stage));
                    }
                }
            });
        }
    });
    process::check_interrupt()?;
    if !options.keep {
        fs::remove_file(&base)?;
    }
    let mut stages = stages.into_inner().unwrap_or_default();
    stages.sort_by_key(|(at, _)| *at);
    Ok(stages.into_iter().map(|(_, stage)| stage).collect())
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    if process::interrupted() { None } else { queue.lock().ok()?.next() }
}

/// The executables for a guest with the tests that are expected of them.
fn runs(built: &Built, filter: Option<&str>) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for executable in built.tests.iter().filter(|executable| executable.level != Level::Unit) {
        let names = executable.names(filter)?;
        if !names.is_empty() {
            let (title, path) = (executable.title(), executable.path.clone());
            runs.push(Run { title, executable: path, names, some: filter.is_some() });
        }
    }
    Ok(runs)
}

fn one(kernel: Kernel, base: &Path, runs: &[Run], folder: &Path, options: &Options) -> Result<Stage> {
    let started = Instant::now();
    let label = kernel.label();
    let prepared = kernel.prepare()?;
    let mut stage = Stage::new(format!("vm {label}"));
    stage.note.clone_from(&prepared.release);
    say!("{label}: booting {}", prepared.release);
    let parameters = format!("nodefence.threads={}", options.threads);
    let guest =
        qemu::Guest { kernel: &prepared, base, folder, name: label, parameters: &parameters, network: &[] };
    let mut reader = verdict::Reader::default();
    let mut raw = Vec::new();
    let ended = guest.boot(LIMIT, |line| {
        raw.push(line.to_owned());
        if let Some((test, outcome)) = reader.line(line) {
            println!("{label:<7} {test} ... {}", word(&outcome));
        }
    })?;
    let console = fs::read(&ended.console).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    reader.judge(runs, &console, &mut stage);
    if !ended.by_itself {
        stage.fail(format!("not done after {} s, killed", LIMIT.as_secs()));
    }
    stage.took = started.elapsed();
    let log: PathBuf = folder.join(format!("{label}.log"));
    if stage.failures.is_empty() && !options.keep {
        fs::remove_file(&ended.console)?;
        if log.exists() {
            fs::remove_file(log)?;
        }
    } else {
        fs::write(&log, raw.join("\n"))?;
        if !stage.failures.is_empty() {
            eprintln!("{}", reader.printed());
        }
        say!(
            "{label}: {} failed; results in {}, kernel's log in {}",
            stage.failures.len(),
            log.display(),
            ended.console.display()
        );
    }
    if !reader.done() && console.is_empty() {
        stage.fail("the kernel said nothing at all");
    }
    Ok(stage)
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Ignored => "ignored",
    }
}
