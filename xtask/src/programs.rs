//! `demo` and `bench`: build our own programs in release mode, and run them as root.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context as _, Result, bail};

use crate::assets;
use crate::process;
use crate::say::say;
use crate::setup;
use crate::setup::need::Need;
use crate::vm;
use crate::workspace::Workspace;

/// Runs the demo: a cluster in namespaces, once without nodefence and once with it.
pub(crate) fn demo(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Demo])?;
    let packages = ["--package", "nodefence", "--package", "nodefence-tests"];
    let programs = ["--bin=nodefence", "--bin=nodefence-demo", "--bin=nodefence-peer"];
    build(workspace, &[&packages[..], &programs].concat())?;
    Ok(ExitCode::from(run_as_root(workspace, "nodefence-demo", args)?))
}

/// The benchmarks' program.
const BENCH: &str = "nodefence-bench";
/// The benchmark beside real parts of Kubernetes.
const KUBERNETES: &str = "kubernetes";
/// The exit code if everything was measured and a goal is missed.
const MISSED: u8 = 1;
/// The exit code if something could not be measured.
pub(crate) const NOT_MEASURED: u8 = 3;

/// Runs the benchmarks. The half of `ipvs` that needs a VM runs first.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    build_bench(workspace)?;
    let usual = ["datapath".to_owned()];
    let args = if args.is_empty() { &usual } else { args };
    if has_kubernetes(args) {
        assets::ensure(workspace, assets::Set::Tests)?;
    }
    if !has_tables(args) {
        return Ok(ExitCode::from(run_as_root(workspace, BENCH, args)?));
    }
    let tables = tables(workspace, args.iter().any(|arg| arg == "--quick"))?;
    Ok(ExitCode::from(run_as_root(workspace, BENCH, &[args, &tables].concat())?))
}

/// Runs all benchmarks, one after the other, and writes the page of their figures. The page of a quick trial is not written to docs/.
pub(crate) fn publish(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    let is_quick = match args {
        [] => false,
        [only] if only == "--quick" => true,
        _ => bail!(
            "`bench --publish` runs all benchmarks as they are: expected nothing more, or --quick for a trial, and got `{}`",
            args.join(" ")
        ),
    };
    // The commit is read before the benchmarks run for an hour. A commit that is made meanwhile is not the measured one.
    let commit = commit(workspace);
    build_bench(workspace)?;
    let from = workspace.target.join("bench/publish");
    // Results of an earlier run must not count as results of this run. The files belong to root.
    process::run(process::root_command("rm").args(["-rf", "--"]).arg(&from))?;
    let tables = tables(workspace, is_quick)?;
    assets::ensure(workspace, assets::Set::Tests)?;
    for name in ["datapath", "ipvs", "scale", KUBERNETES] {
        say!("measuring: {name}");
        let mut call = vec![name.to_owned(), "--out".to_owned(), from.join(name).display().to_string()];
        call.extend_from_slice(args);
        if name == "ipvs" {
            call.extend_from_slice(&tables);
        }
        let code = run_as_root(workspace, BENCH, &call)?;
        let is_measured = from.join(name).join(format!("{name}.json")).exists();
        if code > MISSED || !is_measured {
            return Ok(ExitCode::from(code.max(NOT_MEASURED)));
        }
    }
    let to = if is_quick { from.join("benchmarks.md") } else { workspace.root.join("docs/benchmarks.md") };
    let mut command = process::command(workspace.target.join("release").join(BENCH));
    command.arg("publish").arg("--from").arg(&from).arg("--to").arg(&to);
    command.args(["--commit", &commit]);
    if is_quick {
        command.arg("--quick");
    }
    Ok(ExitCode::from(code(BENCH, process::status(&mut command)?)?))
}

fn build_bench(workspace: &Workspace) -> Result<()> {
    setup::ensure(workspace, &[Need::Build, Need::Bench])?;
    let packages =
        ["--package=nodefence", "--package=nodefence-bench", "--package=nodefence-tests", "--bins"];
    build(workspace, &packages)
}

/// Measures large IPVS tables in a VM. Returns the options by which `nodefence-bench ipvs` finds the figures.
fn tables(workspace: &Workspace, is_quick: bool) -> Result<[String; 2]> {
    setup::ensure(workspace, &[Need::Vm])?;
    let built = |name| workspace.target.join("release").join(name);
    let programs = [BENCH, "nodefence"].map(built);
    let host = built(vm::HOST);
    let file = workspace.target.join("ipvs-tables.json");
    vm::figures(workspace, &programs, &host, is_quick, &file)?;
    Ok(["--tables".to_owned(), file.display().to_string()])
}

/// The commit that is measured. It is not known if the folder is an unpacked archive and no git clone.
fn commit(workspace: &Workspace) -> String {
    let git =
        |args: &[&str]| process::output(process::command("git").args(args).current_dir(&workspace.root));
    let Ok(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "not known".to_owned() };
    let is_clean = git(&["status", "--porcelain"]).is_ok_and(|changes| changes.trim().is_empty());
    let changes = if is_clean { "" } else { ", with changes that are not committed" };
    format!("{}{changes}", commit.trim())
}

/// Whether a call of the benchmarks needs the figures that are measured in a VM.
fn has_tables(args: &[String]) -> bool {
    let is = |wanted: &[&str]| args.iter().any(|arg| wanted.contains(&arg.as_str()));
    args.first().is_some_and(|verb| verb == "ipvs")
        && !is(&["-h", "--help", "rescue", "--only=rescue", "flood", "--only=flood"])
}

/// Whether a call of the benchmarks needs the programs of Kubernetes.
fn has_kubernetes(args: &[String]) -> bool {
    let is_help = |arg: &String| matches!(arg.as_str(), "-h" | "--help");
    args.first().is_some_and(|verb| verb == KUBERNETES) && !args.iter().any(is_help)
}

fn build(workspace: &Workspace, what: &[&str]) -> Result<()> {
    say!("building (release; some minutes the first time)");
    process::run(workspace.cargo().args(["build", "--release"]).args(what))
}

/// Runs a program of `target/release` in the root folder. Returns its exit code.
fn run_as_root(workspace: &Workspace, name: &str, args: &[String]) -> Result<u8> {
    let path: PathBuf = workspace.target.join("release").join(name);
    if !process::is_root() {
        say!("{name} makes network namespaces: it runs under sudo");
    }
    let mut command = process::root_command(&path);
    command.args(args).current_dir(&workspace.root);
    code(name, process::status(&mut command)?)
}

fn code(name: &str, status: ExitStatus) -> Result<u8> {
    let code = status.code().with_context(|| format!("{name} ended with {status}"))?;
    Ok(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::{has_kubernetes, has_tables};

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_one_benchmark_needs_programs_of_kubernetes() {
        let has = |line: &str| has_kubernetes(&words(line));
        assert!(has("kubernetes") && has("kubernetes --quick"));
        assert!(!has("kubernetes --help") && !has("scale") && !has(""));
    }

    #[test]
    fn only_what_is_asked_for_boots_a_vm() {
        let has = |line: &str| has_tables(&words(line));
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
