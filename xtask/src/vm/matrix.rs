//! Boots a guest, and collects its results. Single guests, guests beside an API server and pairs share this code.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::kernel::{Kernel, Prepared};
use super::packed::Packed;
use super::plan::{self, Work};
use super::verdict::{self, Told};
use super::{guest, qemu};
use crate::say::say;
use crate::test::job::Job;
use crate::test::libtest::Outcome;
use crate::test::local::{FUZZ_COUNT, FUZZ_SHORT, LONG};
use crate::test::table::Kind;
use crate::test::tally::Stage;

/// How long a guest may take to boot and to end, in addition to the time of its executables.
const BOOT: Duration = Duration::from_secs(10 * 60);
/// The name under which a guest's start is listed among its executables.
const BOOTED: &str = "the guest's start";
/// The prefix of the names of stages with guests beside an API server.
const KUBE: &str = "vm kube";

/// Which part of the matrix to run, and how.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The kernels. Empty: all kernels.
    pub(crate) kernels: Vec<Kernel>,
    /// Whether to keep the logs and the initramfs also if all tests passed.
    pub(crate) keep: bool,
    /// The number of libtest's threads in guests that may run several tests at once.
    pub(crate) threads: usize,
    /// Whether to use kube-proxy's and the kernel's own periods instead of shorter ones.
    pub(crate) long: bool,
}

/// The work of one guest.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) kernel: Kernel,
    pub(super) kind: Kind,
    pub(super) jobs: Vec<Job>,
    /// Whether the guest runs beside an API server.
    pub(super) api_server: bool,
}

impl Guest {
    /// The name of the guest's stage, plan and logs.
    pub(super) fn name(&self) -> String {
        let kernel = self.kernel.label();
        match self.kind {
            Kind::Plain => format!("vm {kernel}"),
            Kind::Kube => format!("{KUBE} {kernel}"),
            Kind::Timed => format!("vm timed {kernel}"),
            Kind::TimedKube => format!("{KUBE} timed {kernel}"),
            Kind::Pair => format!("vm pair {kernel}"),
        }
    }

    pub(super) fn label(&self) -> String {
        self.name().replace(' ', "-")
    }

    /// The limit. A guest that takes longer hangs.
    fn limit(&self) -> Duration {
        // Each executable may be run a second time.
        BOOT + Duration::from_millis(self.jobs.iter().map(|job| 2 * job.limit_ms).sum())
    }

    pub(super) fn plan(&self, long: bool) -> plan::Plan {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let mut environment = vec![pair((FUZZ_COUNT, FUZZ_SHORT))];
        if long {
            environment.push(pair((LONG, "1")));
        }
        let in_guest = |job: &Job| Work::Tests(Job { program: guest::at(&job.program), ..job.clone() });
        plan::Plan { environment, work: self.jobs.iter().map(in_guest).collect() }
    }
}

/// The stage. If it could not be run: a failed stage with the reason.
pub(super) fn or_failed(name: String, stage: Result<Stage>) -> Stage {
    stage.unwrap_or_else(|error| {
        let error = format!("{error:#}");
        say!("{name}: {error}");
        let mut stage = Stage::new(name);
        stage.fail(error);
        stage
    })
}

/// What all guests of one call share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) base: &'a Path,
    /// Our programs that every guest has.
    pub(super) everywhere: &'a [&'a PathBuf],
    pub(super) packed: &'a Packed,
    pub(super) folder: &'a Path,
    pub(super) options: &'a Options,
}

/// What one guest alone has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Boot<'a> {
    pub(super) parameters: &'a str,
    pub(super) limit: Duration,
    /// The guest's work.
    pub(super) jobs: &'a [Job],
    /// More parts of the initramfs.
    pub(super) parts: &'a [&'a Path],
    pub(super) network: &'a [String],
    /// The program that runs QEMU. `None`: QEMU is started directly.
    pub(super) host: Option<&'a Path>,
}

impl<'a> Boot<'a> {
    pub(super) fn new(guest: &'a Guest, parameters: &'a str) -> Self {
        Self { parameters, limit: guest.limit(), jobs: &guest.jobs, parts: &[], network: &[], host: None }
    }
}

/// The outcome of a guest's run.
pub(super) struct Ran {
    label: String,
    reader: verdict::Reader,
    log: PathBuf,
    ended: qemu::Ended,
    /// How long the guest took to start, and how long each executable ran.
    files: Vec<(String, Duration)>,
}

impl Matrix<'_> {
    /// Boots one guest and reads its results to the end.
    pub(super) fn run(&self, kernel: &Prepared, label: &str, boot: &Boot<'_>) -> Result<Ran> {
        say!("{label}: booting {}", kernel.release);
        let tests = boot.jobs.iter().map(|job| &job.program);
        let ours: BTreeSet<&PathBuf> = self.everywhere.iter().copied().chain(tests).collect();
        let ours = ours.into_iter().map(|program| self.packed.part(program)).collect::<Result<Vec<_>>>()?;
        let guest = qemu::Guest {
            kernel,
            parts: &[&[self.base], &*ours, boot.parts].concat(),
            folder: self.folder,
            name: label,
            parameters: boot.parameters,
            network: boot.network,
            host: boot.host,
        };
        let mut reader = verdict::Reader::default();
        // The time until the first executable begins is the guest's start.
        let mut begun = Instant::now();
        let mut files = Vec::new();
        let log = self.folder.join(format!("{label}.log"));
        let mut out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let ended = guest.boot(boot.limit, |line| {
            // An error is ignored: a full disk costs only the log.
            let _full_disk = writeln!(out, "{line}");
            match reader.line(line) {
                Some(Told::Begun) => {
                    if files.is_empty() {
                        files.push((BOOTED.to_owned(), begun.elapsed()));
                    }
                    begun = Instant::now();
                }
                Some(Told::Test(test, outcome)) => println!("{label:<7} {test} ... {}", word(&outcome)),
                Some(Told::Again(why)) => say!("{label}: once more: {why}"),
                Some(Told::Ended(title)) => {
                    let took = begun.elapsed();
                    say!("{label}: {title}: {:.1} s", took.as_secs_f64());
                    files.push((title, took));
                }
                None => {}
            }
        })?;
        Ok(Ran { label: label.to_owned(), reader, log, ended, files })
    }

    /// Adds a guest's results to `stage`. Keeps the guest's logs if something failed.
    pub(super) fn judge(&self, ran: &Ran, jobs: &[Job], stage: &mut Stage) -> Result<()> {
        let Ran { label, reader, log, ended, files } = ran;
        stage.files.extend(files.iter().cloned());
        let before = stage.failures.len();
        let again = stage.again.len();
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
