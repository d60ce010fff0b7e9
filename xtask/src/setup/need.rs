//! What verbs need.

/// A verb's need beyond the pinned Rust toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// A C linker and bpf-linker.
    Build,
    /// cargo-deny.
    Deny,
    /// iproute2, nftables and other programs for the namespaces of the demo.
    Demo,
    /// The programs that the namespace tests call.
    Namespaces,
    /// The programs that the benchmarks compare nodefence with.
    Bench,
    /// QEMU, and the programs that unpack Debian's kernel packages.
    Vm,
    /// Python for Zig, and QEMU for programs of other architectures.
    Image,
    /// runc and the CNI plugins, for the nodes of the cluster of real kubelets.
    Cluster,
}

impl Need {
    /// The needs of all verbs, for `cargo xtask setup`.
    pub(crate) const ALL: [Self; 8] = [
        Self::Build,
        Self::Deny,
        Self::Demo,
        Self::Namespaces,
        Self::Bench,
        Self::Vm,
        Self::Image,
        Self::Cluster,
    ];
}
