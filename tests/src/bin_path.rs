//! The paths of this build's programs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// The path of this build's program `name`: beside the running executable, or in the folder above (test executables lie in `deps/`). A VM has the same layout.
///
/// # Errors
/// Fails if there is no such program. The error names the command that builds it.
pub fn bin(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("find the running executable")?;
    let folders = this.ancestors().skip(1).take(2);
    for folder in folders {
        let candidate = folder.join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    let package = if ["nodefence", "nodefence-pod"].contains(&name) { name } else { "nodefence-tests" };
    bail!("no `{name}` beside {}: run `cargo build -p {package} --bins` first", this.display())
}

/// Variables that `nodefence` reads beside those of its options. Its client of the API server reads the last two.
const OTHERS: [&str; 4] = ["NODE_NAME", "SUDO_USER", "HTTPS_PROXY", "https_proxy"];

/// Removes the variables that `nodefence` reads from a command's environment. A shell, a pod or sudo may have set them: options, the name of sudo's user, and
/// a proxy.
pub fn without_options(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_read = |name: &str| name.starts_with("NODEFENCE_") || OTHERS.contains(&name);
        if name.to_str().is_some_and(is_read) {
            command.env_remove(name);
        }
    }
}

/// A command for a program that takes `nodefence`'s options. The program gets no options from the environment.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    without_options(&mut command);
    command
}

/// Same as [`command`], for this build's `nodefence`.
///
/// # Errors
/// Fails if the program is missing.
pub fn nodefence_command() -> Result<Command> {
    Ok(command(&bin("nodefence")?))
}
