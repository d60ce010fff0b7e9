//! Where this build's programs lie.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// The program `name` of this build: beside the running executable, or in the folder above (test executables lie in
/// `deps/`). In a VM the same layout is kept.
///
/// # Errors
/// Where the program is not there; with the command that builds it.
pub fn bin(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("find the running executable")?;
    let folders = this.ancestors().skip(1).take(2);
    for folder in folders {
        let candidate = folder.join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    let package = if name == "nodefence" { "nodefence" } else { "nodefence-tests" };
    bail!("no `{name}` beside {}: run `cargo build -p {package} --bins` first", this.display())
}

/// Removes from a command's environment what a shell, a pod or sudo may have left for `nodefence`: options, and the name of sudo's user.
pub fn without_options(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_option = name.to_str().is_some_and(|name| name.starts_with("NODEFENCE_"));
        if is_option || name == "NODE_NAME" || name == "SUDO_USER" {
            command.env_remove(name);
        }
    }
}

/// Runs a program that takes `nodefence`'s options, with no other options than these arguments.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    without_options(&mut command);
    command
}

/// As [`command`], of this build's `nodefence`.
///
/// # Errors
/// Where it is missing.
pub fn nodefence_command() -> Result<Command> {
    Ok(command(&bin("nodefence")?))
}
