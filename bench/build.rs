//! Builds the reference programs and the bench build of the dataplane, both for the kernel.
use aya_build::{Package, Toolchain, build_ebpf};

/// The workspace's pinned toolchain (`[workspace.metadata.toolchain]` in Cargo.toml).
const TOOLCHAIN: &str = "1.98.0";

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=../common/src");
    // As in dataplane-user/build.rs: aya-ebpf uses unstable features, and core has no build for the BPF target.
    #[expect(unsafe_code, reason = "set_var; the build script has one thread")]
    // SAFETY: no other thread runs.
    unsafe {
        std::env::set_var("RUSTC_BOOTSTRAP", "1");
        // aya-build shows each line of that cargo's progress as a warning of ours, after the fact; real messages come all the same.
        std::env::set_var("CARGO_TERM_QUIET", "true");
    }
    let packages = [
        Package { name: "nodefence-bench-ebpf", root_dir: "ebpf", ..Default::default() },
        Package {
            name: "nodefence-ebpf",
            root_dir: "../dataplane-ebpf",
            features: &["bench"],
            ..Default::default()
        },
    ];
    build_ebpf(packages, Toolchain::Custom(TOOLCHAIN))
}
