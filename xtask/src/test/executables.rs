//! Builds the tests, and reads from cargo's messages which executables it built.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use serde_json::Value;

use super::libtest;
use super::table;
use super::tally::Stage;
use crate::process;
use crate::say::say;
use crate::workspace::Workspace;

/// One test executable.
#[derive(Debug, Clone)]
pub(crate) struct Executable {
    pub(crate) path: PathBuf,
    pub(crate) package: String,
    /// Cargo's name of the target. It is the file name of an integration test.
    pub(crate) name: String,
    /// The package's folder. Tests expect it as their working folder.
    pub(crate) folder: PathBuf,
    /// Whether it is a file of `tests/tests`. Otherwise its tests stand beside the code.
    pub(crate) integration: bool,
}

/// The executables that cargo built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Executable>,
    /// The programs that tests start, such as the agent and peers. Tests look for them beside and above their own executable.
    pub(crate) programs: Vec<PathBuf>,
}

/// The folder of the package whose integration tests the table lists.
const PACKAGE: &str = "tests";

/// The programs that tests start.
const PROGRAMS: [&str; 7] = [
    "nodefence",
    "nodefence-demo",
    "nodefence-incident",
    "nodefence-kube-host",
    "nodefence-objects",
    "nodefence-peer",
    "nodefence-pod",
];

/// Builds the tests and the programs that they start. If the filter names a file in full, only that file is built. Otherwise `all`, an option of
/// cargo (`--tests`, `--test=*`), says which tests are built. One call builds all packages: the features of a dependency depend on the packages
/// of the call, and a dependency with other features is built twice. The stage has the time of the build.
pub(crate) fn build(workspace: &Workspace, all: &str, filter: Option<&str>) -> Result<(Built, Stage)> {
    say!("building tests and agent");
    let started = Instant::now();
    let mut command = workspace.cargo();
    let file = filter.and_then(named).map(|file| format!("--test={file}"));
    command.args(["build", "--workspace", file.as_deref().unwrap_or(all)]);
    command.args(PROGRAMS.map(|name| format!("--bin={name}")));
    let messages = messages(&mut command)?;
    let tests = |message: &&Value| message["profile"]["test"] == true;
    let programs = messages.iter().filter(|message| !tests(message));
    let programs = programs.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect();
    let mut tests: Vec<Executable> = messages.iter().filter_map(executable).collect();
    tests.sort_by(|one, other| (&one.package, &one.name).cmp(&(&other.package, &other.name)));
    Ok((Built { tests, programs }, Stage::since("build", started)))
}

/// The test file that a filter names in full: `net_cut`, `net_cut::a_test`.
fn named(filter: &str) -> Option<&str> {
    let file = filter.split("::").next()?;
    table::rows(file).next().map(|_| file)
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
    Some(Executable { path, package, name, folder, integration })
}

impl Executable {
    /// The executable's name in messages: `package::file`.
    pub(crate) fn title(&self) -> String {
        format!("{}::{}", self.package, self.name)
    }

    /// Whether the table of test files has this executable. Executables of the table run as root.
    pub(crate) fn is_of_the_table(&self) -> bool {
        self.integration && self.package == PACKAGE
    }

    /// The command for this executable. Executables of the table run as root.
    pub(crate) fn command(&self) -> Command {
        let mut command = if self.is_of_the_table() {
            process::root_command(&self.path)
        } else {
            process::command(&self.path)
        };
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Lists the names of the executable's tests.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut command = process::command(&self.path);
        command.args(["--list", "--format", "terse"]).current_dir(&self.folder);
        Ok(libtest::names(&process::output(&mut command)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_in_full_or_not_at_all() {
        assert_eq!(named("net_cut"), Some("net_cut"));
        assert_eq!(named("net_cut::a_flag"), Some("net_cut"));
        for filter in ["net", "net_cut_", "a_flag", ""] {
            assert_eq!(named(filter), None, "{filter}");
        }
    }

    #[test]
    fn only_test_executables_count() {
        let mut message = serde_json::json!({"reason": "compiler-artifact", "profile": {"test": true},
            "executable": "/t/net_reset-1", "manifest_path": "/w/tests/Cargo.toml",
            "target": {"name": "net_reset", "kind": ["test"]}});
        let executable = super::executable(&message).expect("a test");
        assert_eq!(executable.title(), "tests::net_reset");
        assert!(executable.is_of_the_table());
        message["profile"]["test"] = Value::Bool(false);
        assert!(super::executable(&message).is_none());
    }
}
