//! Finds a Go that can build the modules, and builds them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::pins::{self, Module, Program};
use crate::process;
use crate::say::say;

/// A build that takes longer hangs. On two busy processors a build took far less.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(15);
/// How many of the last lines of a failed build are shown.
const KEPT_LINES: usize = 40;

/// Builds every program of a module of `sources` into `to`.
pub(super) fn build(sources: &Path, module: &Module, to: &Path) -> Result<()> {
    let folder = sources.join(module.folder);
    let go_mod = fs::read_to_string(folder.join("go.mod"))?;
    let go = Go { program: find(&folder, &go_mod, &candidates())?, folder };
    go.build(module, &pins::linker_flags(&go_mod), to)
}

struct Go {
    program: PathBuf,
    folder: PathBuf,
}

impl Go {
    /// A command of `go` in the module's folder. Proxy, checksum database and caches are the machine's own. Settings on which the built program
    /// would depend are fixed: no workspace around the module, no C compiler, no change of `go.mod` or `go.sum`.
    fn command(&self, verb: &str) -> Command {
        let mut command = go_command(&self.program, &self.folder);
        command.env("CGO_ENABLED", "0").args([verb, "-mod=readonly", "-trimpath"]);
        command
    }

    fn build(&self, module: &Module, flags: &str, to: &Path) -> Result<()> {
        let names: Vec<&str> = module.names().collect();
        say!(
            "building {} from Go modules (some minutes; sources come from your Go module proxy)",
            names.join(", ")
        );
        for Program { name, package, tags } in module.programs {
            let tags = format!("-tags={}", tags.join(","));
            let of = self.packages(package, &tags)?;
            let mut command = self.command("build");
            command
                .arg(&tags)
                .args(["-v", "-buildvcs=false", "-ldflags", flags, "-o"])
                .arg(to.join(name))
                .arg(package);
            let mut progress = Progress::new(name, of);
            let ended = process::stream(&mut command, LIMIT, |line| progress.line(line))?;
            match ended {
                Some(status) if status.success() => {
                    say!("{name}: built, {} packages compiled", progress.compiled)
                }
                Some(status) => bail!("building {name}: {status}\n{}", progress.said.join("\n")),
                None => bail!("building {name}: not done after {} minutes", LIMIT.as_secs() / 60),
            }
        }
        Ok(())
    }

    /// Fetches a program's sources, and counts its packages.
    fn packages(&self, package: &str, tags: &str) -> Result<usize> {
        let mut command = self.command("list");
        let mut progress = Progress::new(package, 0);
        let ended =
            process::stream(command.args([tags, "-deps", package]), LIMIT, |line| progress.line(line))?;
        match ended {
            Some(status) if status.success() => Ok(progress.compiled),
            _ => bail!("fetching the sources of {package} failed:\n{}", progress.said.join("\n")),
        }
    }
}

fn go_command(program: &Path, folder: &Path) -> Command {
    let mut command = process::command(program);
    command.current_dir(folder).env("GOWORK", "off");
    command
}

/// Reads the output of `go build -v` and `go list`. Each package has a line of its own. Every other line is a message.
struct Progress {
    name: String,
    of: usize,
    compiled: usize,
    fetched: usize,
    said: Vec<String>,
    told: Instant,
}

impl Progress {
    fn new(name: &str, of: usize) -> Self {
        Self { name: name.to_owned(), of, compiled: 0, fetched: 0, said: Vec::new(), told: Instant::now() }
    }

    fn line(&mut self, line: &str) {
        if line.starts_with("go: downloading ") {
            self.fetched += 1;
        } else if is_package(line) {
            self.compiled += 1;
        } else {
            self.said.push(line.to_owned());
            let surplus = self.said.len().saturating_sub(KEPT_LINES);
            self.said.drain(..surplus);
        }
        if self.told.elapsed() >= PROGRESS {
            self.told = Instant::now();
            match self.of {
                0 => say!("{}: {} modules fetched", self.name, self.fetched),
                of => say!("{}: {} packages compiled, of {of} at most", self.name, self.compiled),
            }
        }
    }
}

/// Whether a line is an import path, which has no spaces and no colon.
fn is_package(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#') && !line.contains([' ', '\t', ':'])
}

/// The paths at which Go may be: on the search path, where its own archive is unpacked, and where Debian installs releases that are not its
/// default.
fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = process::find("go").into_iter().collect();
    found.push(PathBuf::from("/usr/local/go/bin/go"));
    let debian =
        fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    found.extend(
        debian
            .filter(|path| {
                path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("go-"))
            })
            .map(|path| path.join("bin/go")),
    );
    found.retain(|path| process::is_program(path));
    found
}

/// Finds the first of `candidates` that accepts the module. Go itself compares its release with `go.mod`, and may fetch another release.
fn find(folder: &Path, go_mod: &str, candidates: &[PathBuf]) -> Result<PathBuf> {
    let mut refused = Vec::new();
    for program in candidates {
        match process::output(go_command(program, folder).args(["env", "GOVERSION"])) {
            Ok(version) => {
                say!("Go: {} ({})", version.trim(), program.display());
                return Ok(program.clone());
            }
            Err(error) => refused.push(format!("\n  {error:#}")),
        }
        process::check_interrupt()?;
    }
    let release = pins::release(go_mod).context("go.mod names no Go release")?;
    let what = if refused.is_empty() { "there is no `go` on PATH".to_owned() } else { refused.concat() };
    bail!(
        "Kubernetes' programs are built from source, which needs Go {release} or later: {what}\n\
        One of these helps:\n  \
        - `apt install golang-go`, where `apt-cache policy golang-go` offers that release; else the package golang-{}-go, from backports or unstable\n  \
        - any Go from 1.21 on, with GOTOOLCHAIN=auto in the environment: it fetches the release itself\n  \
        - the archive from https://go.dev/dl/, unpacked to /usr/local/go\n  \
        - {}=FOLDER with ready programs in it",
        minor(release),
        pins::FOLDER,
    )
}

/// The minor release: `1.26` of `1.26.0`.
fn minor(release: &str) -> String {
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::cache::Scratch;

    const GO_MOD: &str = "module x\n\ngo 1.26.0\n";

    /// Writes a program that runs the shell line.
    fn program(folder: &Path, name: &str, line: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
        path
    }

    #[test]
    fn a_go_that_refuses_the_module_is_passed_over() {
        let scratch = Scratch::new(&std::env::temp_dir().join("nodefence-xtask-go")).expect("a folder");
        let old = program(
            scratch.path(),
            "old",
            "echo 'go.mod requires go >= 1.26.0 (running go 1.19.8)' >&2; exit 1",
        );
        let new = program(scratch.path(), "new", "[ \"$GOWORK\" = off ] && echo go1.26.8");
        let found = find(scratch.path(), GO_MOD, &[old.clone(), new.clone()]).expect("the second one");
        assert_eq!(found, new);
        let error = find(scratch.path(), GO_MOD, &[old]).expect_err("too old").to_string();
        for part in [
            "running go 1.19.8",
            "Go 1.26.0 or later",
            "apt install golang-go",
            "golang-1.26-go",
            "NODEFENCE_ASSETS",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = find(scratch.path(), GO_MOD, &[]).expect_err("none").to_string();
        assert!(error.contains("there is no `go` on PATH"), "{error}");
    }

    #[test]
    fn a_build_s_lines_are_told_apart() {
        let mut progress = Progress::new("etcd", 3);
        for line in [
            "go: downloading k8s.io/api v0.36.3",
            "k8s.io/api/core/v1",
            "runtime",
            "# k8s.io/api/core/v1",
            "a.go:3:4: undefined: x",
        ] {
            progress.line(line);
        }
        assert_eq!((progress.fetched, progress.compiled), (1, 2));
        assert_eq!(progress.said, ["# k8s.io/api/core/v1", "a.go:3:4: undefined: x"]);
        for _ in 0..100 {
            progress.line("error: again");
        }
        assert_eq!(progress.said.len(), KEPT_LINES);
    }
}
