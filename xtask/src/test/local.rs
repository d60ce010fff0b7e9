//! Test executables on this machine.

use std::time::{Duration, Instant};

use anyhow::Result;

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
/// Tests that wait for a minute whatever the environment says; `--quick` leaves them out.
const SLOW: [&str; 1] = ["down_for_a_minute"];

/// Runs every executable of one level, one after the other.
pub(crate) fn stage(
    name: &str,
    built: &Built,
    level: Level,
    filter: Option<&str>,
    quick: bool,
) -> Result<Stage> {
    let mut stage = Stage::new(name);
    let started = Instant::now();
    for executable in built.tests.iter().filter(|executable| executable.level == level) {
        let mut names = executable.names(filter)?;
        if quick {
            names.retain(|name| !SLOW.contains(&name.as_str()));
        }
        if !names.is_empty() {
            run(executable, &names, filter.is_some(), quick, &mut stage)?;
        }
    }
    stage.took = started.elapsed();
    Ok(stage)
}

fn run(executable: &Executable, names: &[String], some: bool, quick: bool, stage: &mut Stage) -> Result<()> {
    let title = executable.title();
    say!("{title}: {} tests", names.len());
    let started = Instant::now();
    let mut command = executable.command();
    if quick {
        command.env(FUZZ_COUNT, FUZZ_SHORT);
        for name in SLOW {
            command.args(["--skip", name]);
        }
    } else {
        command.env(LONG, "1");
    }
    if some {
        command.arg("--exact").args(names);
    }
    let mut parser = Parser::default();
    let mut printed = Vec::new();
    let ended = process::stream(&mut command, LIMIT, |line| {
        parser.line(line);
        printed.push(line.to_owned());
    })?;
    let before = stage.failures.len();
    judge(&title, names, &parser, stage);
    match ended {
        None => stage.fail(format!("{title}: not done after {} s, killed", LIMIT.as_secs())),
        // A crash outside any test, or an abort in the middle of one.
        Some(status) if !status.success() && stage.failures.len() == before => {
            stage.fail(format!("{title}: ended with {status}"));
        }
        Some(_) => {}
    }
    if stage.failures.len() > before {
        eprintln!("{}", printed.join("\n"));
    }
    say!("{title}: {} failed, {:.1} s", stage.failures.len() - before, started.elapsed().as_secs_f64());
    Ok(())
}

/// One count per expected test; a test without an outcome has failed.
pub(crate) fn judge(title: &str, names: &[String], parser: &Parser, stage: &mut Stage) {
    for name in names {
        match parser.outcomes().get(name) {
            Some(Outcome::Passed) => stage.pass(),
            Some(Outcome::Failed) => stage.fail(format!("{title}::{name}")),
            Some(Outcome::Ignored) => stage.fail(format!("{title}::{name}: ignored; no test may be skipped")),
            None => stage.fail(format!("{title}::{name}: no result")),
        }
    }
    if let Some(difference) = parser.miscounted() {
        stage.fail(format!("{title}: {difference}"));
    }
}

/// Examples in the documentation, which only cargo can run.
pub(crate) fn documentation(workspace: &Workspace) -> Result<Stage> {
    let mut stage = Stage::new("documentation");
    let started = Instant::now();
    let mut parser = Parser::default();
    let mut printed = Vec::new();
    let mut command = workspace.cargo();
    command.args(["test", "--doc", "--workspace"]);
    say!("examples in the documentation");
    let ended = process::stream(&mut command, LIMIT, |line| {
        parser.line(line);
        printed.push(line.to_owned());
    })?;
    for (name, outcome) in parser.outcomes() {
        match outcome {
            Outcome::Passed => stage.pass(),
            Outcome::Failed => stage.fail(name.clone()),
            Outcome::Ignored => stage.fail(format!("{name}: ignored; no test may be skipped")),
        }
    }
    if !ended.is_some_and(|status| status.success()) {
        if stage.failures.is_empty() {
            stage.fail(format!("`{}`", process::line(&command)));
        }
        eprintln!("{}", printed.join("\n"));
    }
    stage.took = started.elapsed();
    Ok(stage)
}
