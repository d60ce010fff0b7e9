//! `image`: the container image, as an OCI layout, without a daemon.

mod layout;
mod program;
mod zig;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::output::Output;
use crate::say::say;
use crate::setup;
use crate::setup::need::Need;
use crate::workspace::Workspace;
pub(crate) use program::Machine;

/// The wanted image.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The architectures. Empty: all of them.
    pub(crate) machines: Vec<Machine>,
    /// The image's tag in the layout.
    pub(crate) tag: String,
}

/// Builds the image and prints where it lies.
pub(crate) fn verb(workspace: &Workspace, options: &Options, format: Output) -> Result<()> {
    setup::ensure(workspace, &[Need::Build, Need::Image])?;
    let tools = zig::ensure()?;
    let mut machines: Vec<Machine> = Machine::ALL.to_vec();
    machines.retain(|machine| options.machines.is_empty() || options.machines.contains(machine));
    let folder = workspace.target.join("image");
    let mut programs = Vec::new();
    let mut rows = Vec::new();
    for machine in machines {
        let bytes = program::build(workspace, machine, &tools)?;
        let path = folder.join(format!("nodefence-{}", machine.arch()));
        put(&path, &bytes)?;
        let version = program::run(&path, machine)?;
        ensure!(version.starts_with("nodefence "), "{} said `{version}`", path.display());
        say!("{}: {version}, {} MiB", machine.arch(), bytes.len() >> 20);
        rows.push(json!({ "arch": machine.arch().to_string(), "size": bytes.len(), "version": version, "path": path }));
        programs.push(layout::Program { arch: machine.arch(), bytes });
    }
    let layout = folder.join("layout");
    if layout.exists() {
        fs::remove_dir_all(&layout).with_context(|| format!("cannot remove {}", layout.display()))?;
    }
    let digest = layout::write(&layout, &options.tag, &programs)?;
    let archive = folder.join("nodefence.tar");
    layout::pack(&layout, &archive)?;
    match format {
        Output::Table => {
            println!("layout   {}", layout.display());
            println!("archive  {}", archive.display());
            println!("digest   {digest}");
        }
        Output::Json => {
            let image = json!({ "layout": layout, "archive": archive, "digest": digest, "programs": rows });
            println!("{image:#}");
        }
    }
    Ok(())
}

/// Writes a program. A copy that runs keeps its own file.
fn put(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    fs::rename(&fresh, path).with_context(|| format!("cannot write {}", path.display()))
}
