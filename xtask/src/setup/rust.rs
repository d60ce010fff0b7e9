//! The pinned Rust toolchain and the cargo tools.

use std::fs;

use anyhow::{Result, bail};

use crate::process;
use crate::say::say;
use crate::workspace::{Pins, Workspace};

/// Installs the pinned toolchain and its components if they are missing. This calls rustup's install commands, since rustup installs nothing by
/// itself with `RUSTUP_AUTO_INSTALL=0`.
pub(crate) fn toolchain(pins: &Pins) -> Result<()> {
    if process::find("rustup").is_none() {
        bail!(
            "rustup is not on PATH. Install it (https://rustup.rs), or install Rust {} with {} by hand and a `rustup` that runs it",
            pins.rust,
            pins.components.join(", ")
        );
    }
    let mut missing: Vec<&str> = Vec::new();
    if !has_toolchain(&pins.rust)? {
        say!("installing Rust {} ({})", pins.rust, pins.components.join(", "));
        let mut command = process::command("rustup");
        command.args(["toolchain", "install", &pins.rust, "--profile", "minimal", "--no-self-update"]);
        command.args(pins.components.iter().flat_map(|component| ["--component", component]));
        return process::run(&mut command);
    }
    let mut command = process::command("rustup");
    command.args(["component", "list", "--installed", "--toolchain", &pins.rust]);
    let installed = process::output(&mut command)?;
    missing
        .extend(pins.components.iter().map(String::as_str).filter(|component| !lists(&installed, component)));
    if missing.is_empty() {
        return Ok(());
    }
    say!("adding to Rust {}: {}", pins.rust, missing.join(", "));
    process::run(
        process::command("rustup").args(["component", "add", "--toolchain", &pins.rust]).args(missing),
    )
}

fn has_toolchain(version: &str) -> Result<bool> {
    let listed = process::output(process::command("rustup").args(["toolchain", "list"]))?;
    Ok(lists(&listed, version))
}

/// Whether a line that rustup printed is `name`, or `name` followed by a target triple.
fn lists(listed: &str, name: &str) -> bool {
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .any(|word| word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
}

/// Installs a cargo tool in the pinned version, unless that version is installed.
pub(crate) fn tool(workspace: &Workspace, name: &str, version: &str) -> Result<()> {
    if process::find(name).is_some() {
        let printed = process::output(process::command(name).arg("--version")).unwrap_or_default();
        if printed.split_whitespace().any(|word| word == version) {
            return Ok(());
        }
        say!("{name} is {}, wanted {version}", printed.trim());
    }
    say!("installing {name} {version} (built from source, a minute or more)");
    let build = workspace.target.join("xtask-tools");
    let mut command = workspace.cargo();
    command.args(["install", "--locked", "--force", name, "--version", version, "--target-dir"]).arg(&build);
    // The tool runs for seconds, and a fully optimized build of it takes minutes.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    process::run(&mut command)?;
    fs::remove_dir_all(&build).unwrap_or_else(|error| say!("cannot remove {}: {error}", build.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::lists;

    #[test]
    fn a_name_is_found_alone_or_with_its_triple_only() {
        let listed =
            "rust-src\nclippy-x86_64-unknown-linux-gnu (default)\n1.98.0-x86_64-unknown-linux-gnu (active)\n";
        assert!(lists(listed, "rust-src") && lists(listed, "clippy") && lists(listed, "1.98.0"));
        assert!(!lists(listed, "rust") || lists("rust-src", "rust"), "a prefix up to a dash counts");
        assert!(!lists(listed, "1.98") && !lists(listed, "rustfmt"));
    }
}
