//! Zig and cargo-zigbuild, by which one machine builds static programs for all architectures. Both come from the Python package registry.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cache;
use crate::process;
use crate::say::say;

/// The packages and their versions, and thereby those of the C compiler and libc.
const PACKAGES: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];

/// The folder with `cargo-zigbuild`, which finds its Zig beside itself. Installed once, into the cache.
pub(super) fn ensure() -> Result<PathBuf> {
    let cache = cache::folder()?;
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let folder = cache.join(PACKAGES.join("-").replace("==", "-"));
    let _lock = cache::lock(&folder.with_extension("lock"), "another run installs Zig: waiting for it")?;
    let programs = folder.join("bin");
    if works(&programs) {
        return Ok(programs);
    }
    say!("installing {} from the Python package registry", PACKAGES.join(" and "));
    process::run(process::command("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut install = process::command(programs.join("pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps"]).args(PACKAGES);
    process::run(&mut install)?;
    anyhow::ensure!(works(&programs), "{} was installed, and does not run", programs.display());
    Ok(programs)
}

fn works(programs: &Path) -> bool {
    let mut zigbuild = process::command(programs.join("cargo-zigbuild"));
    let mut zig = process::command(programs.join("python"));
    process::output(zigbuild.arg("--version")).is_ok()
        && process::output(zig.args(["-m", "ziglang", "version"])).is_ok()
}

/// Has a cargo command find these programs first.
pub(super) fn first_on_path(command: &mut Command, programs: &Path) -> Result<()> {
    let mut folders = vec![programs.to_owned()];
    folders.extend(std::env::split_paths(&process::search_path()));
    command.env("PATH", std::env::join_paths(folders)?);
    Ok(())
}
