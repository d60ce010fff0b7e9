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
