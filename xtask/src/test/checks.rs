//! Stages that run no tests: format, dependencies, lints.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::tally::Stage;
use crate::process;
use crate::say::say;
use crate::workspace::Workspace;

/// How long the lints of one target may take where nothing is built yet.
const LINTS: Duration = Duration::from_secs(30 * 60);

/// Runs the stages that take seconds: format, dependencies.
pub(crate) fn short(workspace: &Workspace) -> Result<Vec<Stage>> {
    Ok(vec![format(workspace)?, dependencies(workspace)?])
}

fn format(workspace: &Workspace) -> Result<Stage> {
    say!("format");
    one("format", &mut [workspace.cargo().args(["fmt", "--all", "--", "--check"])])
}

/// Runs the lints, for the host and for the eBPF target, in time that nothing else wants. What they print is shown if they fail.
pub(crate) fn lints(workspace: &Workspace) -> Result<Stage> {
    say!("lints, beside the tests");
    let mut host = process::idle(&workspace.cargo());
    host.args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    let mut kernel = process::idle(&workspace.cargo());
    // These are the switches of the agent's build script. The lints have a target folder of their own, so that lints and build do not make each
    // other build again.
    kernel.env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", "--cfg=bpf_target_arch=\"x86_64\"");
    kernel.args([
        "clippy",
        "--package",
        "nodefence-ebpf",
        "--package",
        "nodefence-bench-ebpf",
        "--bins",
        "--release",
        "-Z",
        "build-std=core",
    ]);
    kernel.args(["--target", "bpfel-unknown-none", "--target-dir"]).arg(workspace.target.join("ebpf-lints"));
    kernel.args(["--", "-D", "warnings"]);
    let mut stage = Stage::new("lints");
    let started = Instant::now();
    for mut command in [host, kernel] {
        if quietly(&mut command, LINTS, &mut stage)? {
            stage.pass();
        }
    }
    stage.took = started.elapsed();
    Ok(stage)
}

/// Runs a command to its end, and returns whether it succeeded. If not, that and what it printed are the stage's.
pub(crate) fn quietly(command: &mut Command, limit: Duration, stage: &mut Stage) -> Result<bool> {
    let mut printed = Vec::new();
    let ended = process::stream(command, limit, |line| printed.push(line.to_owned()))?;
    let succeeded = ended.is_some_and(|status| status.success());
    if !succeeded {
        stage.fail(format!("`{}`", process::line(command)));
        stage.printed.push(printed.join("\n"));
    }
    Ok(succeeded)
}

/// Checks licences, sources and bans, which need no network. Checks advisories too if their database can be fetched.
fn dependencies(workspace: &Workspace) -> Result<Stage> {
    say!("dependencies");
    let deny = || {
        let mut command = workspace.cargo();
        command.args(["deny", "--log-level", "error"]);
        command
    };
    let mut stage = one("dependencies", &mut [deny().args(["check", "bans", "licenses", "sources"])])?;
    let started = Instant::now();
    if process::output(deny().args(["fetch", "db"])).is_ok() {
        let advisories = one("advisories", &mut [deny().args(["check", "--disable-fetch", "advisories"])])?;
        stage.passed += advisories.passed;
        stage.failures.extend(advisories.failures);
    } else {
        process::check_interrupt()?;
        stage.note = "advisory database not reachable: advisories not checked".to_owned();
    }
    stage.took += started.elapsed();
    Ok(stage)
}

fn one(name: &str, commands: &mut [&mut Command]) -> Result<Stage> {
    let mut stage = Stage::new(name);
    let started = Instant::now();
    for command in commands {
        if process::status(command)?.success() {
            stage.pass();
        } else {
            stage.fail(format!("`{}`", process::line(command)));
        }
    }
    stage.took = started.elapsed();
    Ok(stage)
}
