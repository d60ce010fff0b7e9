//! Building the tests, and what cargo says it built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::libtest;
use crate::process;
use crate::workspace::Workspace;

/// Where a test belongs (see CONTRIBUTING.md): decides what it needs and where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Beside the code; no privilege.
    Unit,
    /// Packets through BPF_PROG_TEST_RUN, as root.
    Packets,
    /// Network namespaces, as root.
    Namespaces,
    /// Namespaces with real parts of Kubernetes in them (`cargo xtask assets`), as root.
    Kubernetes,
    /// Another kernel or modules that only a VM has.
    Vm,
    /// A VM whose host runs a real API server for it (`cargo xtask assets`).
    VmKubernetes,
    /// Two VMs joined by a wire, each in a role.
    Pair,
}

/// One test executable.
#[derive(Debug, Clone)]
pub(crate) struct Executable {
    pub(crate) path: PathBuf,
    pub(crate) package: String,
    /// Cargo's target name: the file name of an integration test.
    pub(crate) name: String,
    /// The package's folder, which tests expect as working folder.
    pub(crate) folder: PathBuf,
    pub(crate) level: Level,
}

/// What `cargo test --no-run` and `cargo build` left.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Executable>,
    /// The programs that tests start: the agent, peers. Tests look for them beside and above their own executable.
    pub(crate) programs: Vec<PathBuf>,
}

/// The programs that tests start.
const PROGRAMS: [&str; 3] = ["nodefence", "nodefence-kube-host", "nodefence-peer"];

/// Builds tests (those that `which` names to cargo: `--tests`, `--test=*`) and the programs they start. All of it in one call and of all packages:
/// which features their dependencies have depends on what is built together, and what has others is built twice.
pub(crate) fn build(workspace: &Workspace, which: &str) -> Result<Built> {
    let mut command = workspace.cargo();
    command.args(["build", "--workspace", which]).args(PROGRAMS.map(|name| format!("--bin={name}")));
    let messages = messages(&mut command)?;
    let tests = |message: &&Value| message["profile"]["test"] == true;
    let programs = messages.iter().filter(|message| !tests(message));
    let programs = programs.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect();
    let mut tests: Vec<Executable> = messages.iter().filter_map(executable).collect();
    tests.sort_by(|a, b| (&a.package, &a.name).cmp(&(&b.package, &b.name)));
    Ok(Built { tests, programs })
}

fn messages(command: &mut Command) -> Result<Vec<Value>> {
    command.args(["--message-format", "json-render-diagnostics"]);
    let text = process::output_with_progress(command)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn executable(message: &Value) -> Option<Executable> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let name = message["target"]["name"].as_str()?.to_owned();
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let integration = message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test");
    let level = level(&package, &name, integration);
    Some(Executable { path, package, name, folder, level })
}

fn level(package: &str, name: &str, integration: bool) -> Level {
    match (package, integration) {
        ("tests", true) if name.starts_with("packets") => Level::Packets,
        ("tests", true) if name.starts_with("kube_") => Level::Kubernetes,
        ("tests", true) if name.starts_with("vm_kube_") => Level::VmKubernetes,
        ("tests", true) if name.starts_with("vm_") => Level::Vm,
        ("tests", true) if name.starts_with("pair_") => Level::Pair,
        ("tests", true) => Level::Namespaces,
        _ => Level::Unit,
    }
}

impl Executable {
    /// `package::file`, for messages.
    pub(crate) fn title(&self) -> String {
        format!("{}::{}", self.package, self.name)
    }

    /// The command for this executable, as root where its level needs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.level {
            Level::Unit => process::command(&self.path),
            _ => process::root_command(&self.path),
        };
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Names of its tests, those that contain `filter` in `file::test` alone.
    pub(crate) fn names(&self, filter: Option<&str>) -> Result<Vec<String>> {
        let mut command = process::command(&self.path);
        command.args(["--list", "--format", "terse"]).current_dir(&self.folder);
        let mut names = libtest::names(&process::output(&mut command)?);
        if let Some(filter) = filter {
            names.retain(|name| format!("{}::{name}", self.name).contains(filter));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_file_s_name_decides_where_it_runs() {
        assert_eq!(level("tests", "packets_tcp", true), Level::Packets);
        assert_eq!(level("tests", "vm_ipvs", true), Level::Vm);
        assert_eq!(level("tests", "kube_proxy", true), Level::Kubernetes);
        assert_eq!(level("tests", "vm_kube_proxy", true), Level::VmKubernetes);
        assert_eq!(level("tests", "net_reset", true), Level::Namespaces);
        assert_eq!(level("tests", "nodefence_tests", false), Level::Unit);
        assert_eq!(level("dataplane-user", "nodefence", false), Level::Unit);
    }

    #[test]
    fn only_test_executables_count() {
        let mut message = serde_json::json!({"reason": "compiler-artifact", "profile": {"test": true},
            "executable": "/t/net_reset-1", "manifest_path": "/w/tests/Cargo.toml",
            "target": {"name": "net_reset", "kind": ["test"]}});
        let executable = super::executable(&message).expect("a test");
        assert_eq!(executable.title(), "tests::net_reset");
        message["profile"]["test"] = Value::Bool(false);
        assert!(super::executable(&message).is_none());
    }
}
