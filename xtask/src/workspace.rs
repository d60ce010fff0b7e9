//! The clone: its root, the versions that its `Cargo.toml` pins, and calls of the pinned cargo.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::process;

/// The clone and the versions that it pins.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// cargo's target folder.
    pub(crate) target: PathBuf,
    /// `[workspace.metadata.toolchain]`.
    pub(crate) pins: Pins,
}

/// Versions of `[workspace.metadata.toolchain]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pins {
    pub(crate) rust: String,
    pub(crate) components: Vec<String>,
    pub(crate) bpf_linker: String,
    pub(crate) cargo_deny: String,
}

impl Workspace {
    /// Reads the metadata by the cargo that runs this program, since the pinned cargo may not be installed yet.
    pub(crate) fn find() -> Result<Self> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // `cargo run` sets the folder in which it found this package. The folder that was compiled in may be that of another clone: for cargo a
        // copy of a clone with its target folder is already built.
        let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let manifest = Path::new(&folder).join("Cargo.toml");
        let mut command = process::command(cargo);
        command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(manifest);
        let metadata: Value =
            serde_json::from_str(&process::output(&mut command)?).context("cargo metadata: no JSON")?;
        let path = |key: &str| {
            metadata[key].as_str().map(PathBuf::from).with_context(|| format!("cargo metadata: no {key}"))
        };
        Ok(Self {
            root: path("workspace_root")?,
            target: path("target_directory")?,
            pins: Pins::read(&metadata["metadata"])?,
        })
    }

    /// `cargo` of the pinned toolchain, in the root folder, with the normal target folder.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = process::command("rustup");
        command.args(["run", &self.pins.rust, "cargo"]).current_dir(&self.root);
        command
    }
}

impl Pins {
    /// Reads `[workspace.metadata]` as cargo prints it.
    fn read(metadata: &Value) -> Result<Self> {
        let toolchain = &metadata["toolchain"];
        let text = |key: &str| match toolchain[key].as_str() {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => bail!("Cargo.toml: [workspace.metadata.toolchain] {key}: expected a version in quotes"),
        };
        let components = toolchain["components"].as_array().into_iter().flatten();
        Ok(Self {
            rust: text("rust")?,
            components: components.filter_map(Value::as_str).map(str::to_owned).collect(),
            bpf_linker: text("bpf-linker")?,
            cargo_deny: text("cargo-deny")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_and_a_missing_one_is_named() {
        let good = serde_json::json!({"toolchain": {
            "rust": "1.98.0", "components": ["rust-src"], "bpf-linker": "0.10.4", "cargo-deny": "0.20.2"}});
        let pins = Pins::read(&good).expect("complete");
        assert_eq!((pins.rust.as_str(), pins.components.len()), ("1.98.0", 1));
        let mut bad = good;
        bad["toolchain"]["bpf-linker"] = Value::Null;
        let error = Pins::read(&bad).expect_err("incomplete").to_string();
        assert!(error.contains("bpf-linker"), "{error}");
    }

    #[test]
    fn the_build_script_names_the_same_toolchain() {
        let workspace = Workspace::find().expect("this workspace");
        let script = std::fs::read_to_string(workspace.root.join("dataplane-user/kernel/build.rs"))
            .expect("build script");
        assert!(
            script.contains(&format!("const TOOLCHAIN: &str = \"{}\";", workspace.pins.rust)),
            "dataplane-user/kernel/build.rs names another toolchain than Cargo.toml ({})",
            workspace.pins.rust
        );
    }

    #[test]
    fn core_depends_on_nothing_that_has_effects() {
        let workspace = Workspace::find().expect("this workspace");
        let packages = |package: &str| {
            let mut tree = workspace.cargo();
            tree.args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{lib}"]);
            process::output(tree.args(["--package", package])).expect("what it depends on")
        };
        let effects =
            ["aya", "tokio", "nix", "clap", "libc", "rustix", "notify", "tracing", "nodefence_kernel"];
        let depends = |tree: &str, on: &str| tree.lines().any(|line| line.trim() == on);
        let core = packages("nodefence-core");
        assert!(depends(&core, "nodefence_common") && depends(&core, "serde"), "{core}");
        for effect in effects {
            assert!(!depends(&core, effect), "nodefence-core depends on {effect}:\n{core}");
        }
        let kernel = packages("nodefence-kernel");
        assert!(depends(&kernel, "aya") && depends(&kernel, "nix"), "{kernel}");
        for effect in ["clap", "notify"] {
            assert!(!depends(&kernel, effect), "nodefence-kernel depends on {effect}:\n{kernel}");
        }
    }
}
