//! `demo` and `bench`: release builds of our own programs, run as root.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::process;
use crate::say::say;
use crate::setup;
use crate::setup::need::Need;
use crate::vm;
use crate::workspace::Workspace;

/// The cluster in namespaces, once without and once with nodefence.
pub(crate) fn demo(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Demo])?;
    let packages = ["--package", "nodefence", "--package", "nodefence-tests"];
    let programs = ["--bin=nodefence", "--bin=nodefence-demo", "--bin=nodefence-peer"];
    build(workspace, &[&packages[..], &programs].concat())?;
    run_as_root(workspace, "nodefence-demo", args)
}

/// The benchmarks. Of `ipvs` one half runs in a VM, and first.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    const NAME: &str = "nodefence-bench";
    setup::ensure(workspace, &[Need::Build, Need::Bench])?;
    let packages =
        ["--package=nodefence", "--package=nodefence-bench", "--package=nodefence-tests", "--bins"];
    build(workspace, &packages)?;
    if !has_tables(args) {
        return run_as_root(workspace, NAME, args);
    }
    setup::ensure(workspace, &[Need::Vm])?;
    let built = |name| workspace.target.join("release").join(name);
    let (programs, host) = ([NAME, "nodefence"].map(built), built(vm::HOST));
    let file = workspace.target.join("ipvs-tables.json");
    vm::figures(workspace, &programs, &host, args.iter().any(|arg| arg == "--quick"), &file)?;
    let told = ["--tables".to_owned(), file.display().to_string()];
    run_as_root(workspace, NAME, &[args, &told].concat())
}

/// Whether a call of the benchmarks wants what is measured in a VM.
fn has_tables(args: &[String]) -> bool {
    let is = |wanted: &[&str]| args.iter().any(|arg| wanted.contains(&arg.as_str()));
    args.first().is_some_and(|verb| verb == "ipvs")
        && !is(&["-h", "--help", "rescue", "--only=rescue", "flood", "--only=flood"])
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

#[cfg(test)]
mod tests {
    use super::has_tables;

    #[test]
    fn only_what_is_asked_for_boots_a_vm() {
        let has = |line: &str| has_tables(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for line in ["ipvs", "ipvs --quick", "ipvs --only tables", "ipvs --only=tables --quick"] {
            assert!(has(line), "{line}");
        }
        for line in [
            "datapath",
            "ipvs --help",
            "ipvs --only rescue",
            "ipvs --quick --only=rescue",
            "ipvs --only flood",
            "ipvs --only=flood",
            "scale",
            "",
        ] {
            assert!(!has(line), "{line}");
        }
    }
}
