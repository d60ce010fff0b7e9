//! `demo` and `bench`: release builds of our own programs, run as root.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::process;
use crate::say;
use crate::setup::{self, Need};
use crate::workspace::Workspace;

/// The cluster in namespaces, once without and once with nodefence.
pub(crate) fn demo(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Demo])?;
    build(workspace, &["--package", "nodefence", "--package", "nodefence-tests", "--bins"])?;
    run_as_root(workspace, "nodefence-demo", args)
}

/// The benchmarks against peers.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Bench])?;
    build(workspace, &["--package", "nodefence", "--package", "nodefence-bench", "--bins"])?;
    run_as_root(workspace, "nodefence-bench", args)
}

fn build(workspace: &Workspace, what: &[&str]) -> Result<()> {
    say!("building (release; some minutes the first time)");
    process::run(workspace.cargo().args(["build", "--release"]).args(what))
}

/// Runs a program of `target/release` in the root folder; its exit code is ours.
fn run_as_root(workspace: &Workspace, name: &str, args: &[String]) -> Result<ExitCode> {
    let path: PathBuf = workspace.target.join("release").join(name);
    if !process::is_root() {
        say!("{name} makes network namespaces: it runs under sudo");
    }
    let mut command = process::root_command(&path);
    command.args(args).current_dir(&workspace.root);
    let status = process::status(&mut command)?;
    let code = status.code().with_context(|| format!("{name} ended with {status}"))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
