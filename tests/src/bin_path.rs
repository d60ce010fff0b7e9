//! Where this build's programs lie.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

/// The program `name` of this build: beside the running executable, or in the folder above (test executables lie in
/// `deps/`). In a VM the same layout is kept.
///
/// # Errors
/// Where it is not there, with the command that builds it.
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
