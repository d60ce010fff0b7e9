//! Builds the eBPF object, which the agent carries inside its binary.
use aya_build::{Package, Toolchain, build_ebpf};

/// The workspace's pinned toolchain (`[workspace.metadata.toolchain]` in Cargo.toml; a test compares the two).
const TOOLCHAIN: &str = "1.98.0";

fn main() -> anyhow::Result<()> {
    // The crate that both sides of the maps share is part of the object too.
    println!("cargo::rerun-if-changed=../../common/src");
    // aya-ebpf uses unstable features, and core has no build for the BPF target. Only this process and the cargo that it starts
    // for that target see the switch.
    #[expect(unsafe_code, reason = "set_var; the build script has one thread")]
    // SAFETY: no other thread runs.
    unsafe {
        std::env::set_var("RUSTC_BOOTSTRAP", "1");
        // aya-build shows each line of that cargo's progress as a warning of this crate, after the fact. Real messages are shown
        // all the same.
        std::env::set_var("CARGO_TERM_QUIET", "true");
        // Incremental code is another code, whose stack the verifier may refuse.
        std::env::set_var("CARGO_INCREMENTAL", "0");
    }
    let package = Package { name: "nodefence-ebpf", root_dir: "../../dataplane-ebpf", ..Default::default() };
    build_ebpf([package], Toolchain::Custom(TOOLCHAIN))
}
