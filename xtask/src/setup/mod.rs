//! Brings a fresh machine to where a verb can run, and says what it installs.

mod debian;
pub(crate) mod need;
mod rust;

use anyhow::Result;
use need::Need;

use crate::say::say;
use crate::workspace::Workspace;

/// Installs what is missing: Debian packages, the pinned toolchain, bpf-linker, cargo-deny. Silent where nothing is.
pub(crate) fn ensure(workspace: &Workspace, needs: &[Need]) -> Result<()> {
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

/// The verb: everything for every verb, or only what building takes.
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
