//! Test executables on this machine.

use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::executables::{Built, Executable, Level};
use super::libtest::{Outcome, Parser};
use super::tally::Stage;
use crate::process;
use crate::say;
use crate::workspace::Workspace;

/// An executable that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Environment of the million-packet test: how many packets it tries.
pub(crate) const FUZZ_COUNT: &str = "NODEFENCE_FUZZ_PACKETS";
/// Enough to reach each branch, short enough for `--quick` and for an emulated processor.
pub(crate) const FUZZ_SHORT: &str = "20000";

/// Environment of the tests that take long with it: a link is down for a minute, at the kernel's own pace; ten minutes of rolling restarts in a guest.
pub(crate) const LONG: &str = "NODEFENCE_LONG_TESTS";

/// Executables whose tests wait for most of their time, the longest first. They run beside the others.
const WAITING: [&str; 4] = ["kube_audit", "hold_neighbour", "net_link_down", "net_audit"];
/// So many of them at once: more would have others meet their start, which is busy.
const LANES: usize = 2;
/// Tests of such a one at once.
const TOGETHER: &str = "4";

/// Where no more than so many tests of an executable failed, they are run once more.
const AGAIN: usize = 3;

/// What of the executables is meant, and how they run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Local<'a> {
    pub(crate) built: &'a Built,
    /// Only tests whose `file::name` contains this.
    pub(crate) filter: Option<&'a str>,
    pub(crate) quick: bool,
}

/// An executable with its tests.
type Chosen<'a> = (&'a Executable, Vec<String>);

impl<'a> Local<'a> {
    /// Runs every executable of one level, one after the other.
    pub(crate) fn stage(&self, name: &str, level: Level) -> Result<Stage> {
        let chosen = self.chosen(level)?;
        self.one_by_one(name, chosen.iter())
    }

    /// A stage for each of these levels, one after the other; beside them, in a stage of their own, the executables of all of them that mostly wait.
    pub(crate) fn stages(&self, levels: &[(&str, Level)]) -> Result<Vec<Stage>> {
        let (mut waiting, mut others) = (Vec::new(), Vec::new());
        for (name, level) in levels {
            let (wait, work): (Vec<Chosen<'a>>, Vec<_>) =
                self.chosen(*level)?.into_iter().partition(|(executable, _)| rank(executable).is_some());
            waiting.extend(wait);
            others.push((*name, work));
        }
        waiting.sort_by_key(|(executable, _)| rank(executable));
        let started = Instant::now();
        let queue = Mutex::new(waiting.iter());
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES.min(waiting.len()))
                .map(|_| {
                    // The lock is held while one is taken, not while it runs.
                    let next = || queue.lock().ok()?.next();
                    scope.spawn(move || self.one_by_one("waiting", std::iter::from_fn(next)))
                })
                .collect();
            let mut stages = Vec::new();
            for (name, work) in &others {
                stages.push(self.one_by_one(name, work.iter())?);
            }
            let mut waited = Stage::new("waiting");
            waited.note = "beside those above".to_owned();
            for lane in lanes {
                waited.add(lane.join().map_err(|_| anyhow!("a thread of the tests that wait panicked"))??);
            }
            waited.took = started.elapsed();
            if !waiting.is_empty() {
                stages.push(waited);
            }
            Ok(stages)
        })
    }

    fn chosen(&self, level: Level) -> Result<Vec<Chosen<'a>>> {
        let mut chosen = Vec::new();
        for executable in self.built.tests.iter().filter(|executable| executable.level == level) {
            let names = executable.names(self.filter)?;
            if !names.is_empty() {
                chosen.push((executable, names));
            }
        }
        Ok(chosen)
    }

    fn one_by_one<'b>(&self, name: &str, chosen: impl Iterator<Item = &'b Chosen<'a>>) -> Result<Stage>
    where
        'a: 'b,
    {
        let mut stage = Stage::new(name);
        let started = Instant::now();
        for (executable, names) in chosen {
            self.run(executable, names, &mut stage)?;
        }
        stage.took = started.elapsed();
        Ok(stage)
    }

    fn command(&self, executable: &Executable) -> Command {
        let mut command = executable.command();
        if self.quick {
            command.env(FUZZ_COUNT, FUZZ_SHORT);
        } else {
            command.env(LONG, "1");
        }
        command
    }

    fn run(&self, executable: &Executable, names: &[String], stage: &mut Stage) -> Result<()> {
        let title = executable.title();
        say!("{title}: {} tests", names.len());
        let started = Instant::now();
        let mut command = self.command(executable);
        if rank(executable).is_some() {
            command.args(["--test-threads", TOGETHER]);
        }
        if self.filter.is_some() {
            command.arg("--exact").args(names);
        }
        let mut tries = vec![Attempt::run(&mut command)?];
        let failed = tries[0].parser.failed();
        if is_timed(executable.level) && tries[0].ended.is_some() && (1..=AGAIN).contains(&failed.len()) {
            say!("{title}: {} once more", failed.join(", "));
            let mut command = self.command(executable);
            command.args(["--test-threads", "1", "--exact"]).args(failed);
            tries.push(Attempt::run(&mut command)?);
        }
        let before = stage.failures.len();
        judge(&title, names, &tries.iter().map(|attempt| &attempt.parser).collect::<Vec<_>>(), stage);
        match tries.last().and_then(|attempt| attempt.ended) {
            None => stage.fail(format!("{title}: not done after {} s, killed", LIMIT.as_secs())),
            // A crash outside any test, or an abort in the middle of one.
            Some(status) if !status.success() && stage.failures.len() == before => {
                stage.fail(format!("{title}: ended with {status}"));
            }
            Some(_) => {}
        }
        if stage.failures.len() > before || tries.len() > 1 {
            tries.iter().for_each(Attempt::print);
        }
        let took = started.elapsed();
        say!("{title}: {} failed, {:.1} s", stage.failures.len() - before, took.as_secs_f64());
        stage.files.push((title, took));
        Ok(())
    }
}

/// One run of an executable, or of the examples.
struct Attempt {
    parser: Parser,
    printed: Vec<String>,
    /// `None` where it had to be killed.
    ended: Option<ExitStatus>,
}

impl Attempt {
    fn run(command: &mut Command) -> Result<Self> {
        let (mut parser, mut printed) = (Parser::default(), Vec::new());
        let ended = process::stream(command, LIMIT, |line| {
            parser.line(line);
            printed.push(line.to_owned());
        })?;
        Ok(Self { parser, printed, ended })
    }

    fn print(&self) {
        eprintln!("{}", self.printed.join("\n"));
    }
}

/// Whether its tests run against the clock, leases of seconds and real kernels' timers: a machine that has others to serve may stand still for longer.
fn is_timed(level: Level) -> bool {
    matches!(level, Level::Namespaces | Level::Kubernetes)
}

/// Its place among those that wait.
fn rank(executable: &Executable) -> Option<usize> {
    WAITING.iter().position(|name| *name == executable.name)
}

/// One count per expected test; a test without an outcome has failed. Where tests were run more than once the last outcome counts, and those that
/// failed before they passed are noted.
pub(crate) fn judge(title: &str, names: &[String], tries: &[&Parser], stage: &mut Stage) {
    for name in names {
        let mut outcomes = tries.iter().filter_map(|parser| parser.outcomes().get(name));
        let first = outcomes.next();
        match outcomes.next_back().or(first) {
            Some(Outcome::Passed) => {
                stage.pass();
                if first != Some(&Outcome::Passed) {
                    stage.again.push(format!("{title}::{name}"));
                }
            }
            Some(Outcome::Failed) => stage.fail(format!("{title}::{name}")),
            Some(Outcome::Ignored) => stage.fail(format!("{title}::{name}: ignored; no test may be skipped")),
            None => stage.fail(format!("{title}::{name}: no result")),
        }
    }
    for difference in tries.iter().filter_map(|parser| parser.miscounted()) {
        stage.fail(format!("{title}: {difference}"));
    }
}

/// Examples in the documentation, which only cargo can run.
pub(crate) fn documentation(workspace: &Workspace) -> Result<Stage> {
    let mut stage = Stage::new("documentation");
    let started = Instant::now();
    let mut command = workspace.cargo();
    command.args(["test", "--doc", "--workspace"]);
    say!("examples in the documentation");
    let attempt = Attempt::run(&mut command)?;
    for (name, outcome) in attempt.parser.outcomes() {
        match outcome {
            Outcome::Passed => stage.pass(),
            Outcome::Failed => stage.fail(name.clone()),
            Outcome::Ignored => stage.fail(format!("{name}: ignored; no test may be skipped")),
        }
    }
    if !attempt.ended.is_some_and(|status| status.success()) {
        if stage.failures.is_empty() {
            stage.fail(format!("`{}`", process::line(&command)));
        }
        attempt.print();
    }
    stage.took = started.elapsed();
    Ok(stage)
}
