//! Installs on a new machine what a verb needs, and prints what it installs.

mod debian;
pub(crate) mod need;
mod rust;

use anyhow::Result;
use need::Need;
use nix::sys::statvfs::statvfs;

use crate::say::say;
use crate::workspace::Workspace;

/// The size to which `cargo xtask test` fills an empty target folder, rounded up, in bytes.
const TARGET_SIZE: u64 = 5_000_000_000;

/// Installs missing Debian packages, the pinned toolchain, bpf-linker and cargo-deny. Prints nothing if nothing is missing.
pub(crate) fn ensure(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    warn_of_a_full_disk(workspace);
    debian::ensure(needs)?;
    rust::toolchain(&workspace.pins)?;
    if needs.contains(&Need::Build) {
        rust::tool(workspace, "bpf-linker", &workspace.pins.bpf_linker)?;
    }
    if needs.contains(&Need::Deny) {
        rust::tool(workspace, "cargo-deny", &workspace.pins.cargo_deny)?;
    }
    Ok(())
}

/// The verb `setup`: installs everything for every verb but `cluster-test`, or only what building needs.
pub(crate) fn verb(workspace: &Workspace, build: bool) -> Result<()> {
    let pins = &workspace.pins;
    if build {
        ensure(workspace, &[Need::Build])?;
        say!("ready: Rust {}, bpf-linker {}", pins.rust, pins.bpf_linker);
        return Ok(());
    }
    ensure(workspace, &Need::ALL)?;
    say!(
        "ready: Rust {}, bpf-linker {}, cargo-deny {}, Debian packages",
        pins.rust,
        pins.bpf_linker,
        pins.cargo_deny
    );
    Ok(())
}

/// Warns of a full disk. A linker on a full disk crashes without a reason in its message.
fn warn_of_a_full_disk(workspace: &Workspace) {
    let Ok(disk) = statvfs(&workspace.root) else {
        return;
    };
    let free = disk.blocks_available() * disk.fragment_size();
    if free < TARGET_SIZE && !workspace.target.join("debug").exists() {
        say!(
            "the disk of {} has {:.1} GB free; a first build takes about {} GB",
            workspace.root.display(),
            free as f64 / 1e9,
            TARGET_SIZE / 1_000_000_000
        );
    }
}
