//! Stages that run no tests: format, lints, dependencies.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::tally::Stage;
use crate::process;
use crate::say::say;
use crate::workspace::Workspace;

/// Runs the stages: format, lints (host and eBPF target), dependencies.
pub(crate) fn all(workspace: &Workspace) -> Result<Vec<Stage>> {
    Ok(vec![format(workspace)?, lints(workspace)?, dependencies(workspace)?])
}

fn format(workspace: &Workspace) -> Result<Stage> {
    say!("format");
    one("format", &mut [workspace.cargo().args(["fmt", "--all", "--", "--check"])])
}

fn lints(workspace: &Workspace) -> Result<Stage> {
    say!("lints");
    let mut host = workspace.cargo();
    host.args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    let mut kernel = workspace.cargo();
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
    one("lints", &mut [&mut host, &mut kernel])
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
