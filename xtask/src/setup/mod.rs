//! Brings a fresh machine to where a verb can run, and says what it installs.

mod debian;
mod rust;

use anyhow::Result;

use crate::say;
use crate::workspace::Workspace;

/// What a verb needs beyond the pinned Rust toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// A C linker and bpf-linker.
    Build,
    /// cargo-deny.
    Deny,
    /// iproute2, nftables and friends, for the namespaces of the demo.
    Demo,
    /// Everything that the namespace tests call.
    Namespaces,
    /// The programs the benchmarks compare with.
    Bench,
    /// QEMU and what unpacks Debian's kernel packages.
    Vm,
}

impl Need {
    /// All of them, for `cargo xtask setup`.
    pub(crate) const ALL: [Self; 6] =
        [Self::Build, Self::Deny, Self::Demo, Self::Namespaces, Self::Bench, Self::Vm];
}

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

/// The verb: everything for every verb.
pub(crate) fn verb(workspace: &Workspace) -> Result<()> {
    ensure(workspace, &Need::ALL)?;
    let pins = &workspace.pins;
    say!(
        "ready: Rust {}, bpf-linker {}, cargo-deny {}, Debian packages",
        pins.rust,
        pins.bpf_linker,
        pins.cargo_deny
    );
    Ok(())
}
