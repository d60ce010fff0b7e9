//! Reads and writes the kernel's tables: BPF programs and maps, netlink, conntrack, IPVS, nftables. `nodefence-core` decides what they
//! contain.

/// The eBPF object of this build.
pub static DATAPLANE_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nodefence-dataplane"));

pub mod allocator;
pub mod conntrack;
pub mod dataplane;
pub mod ipvs;
mod netlink;
mod nfnetlink;
mod nftables;
pub mod offload;
pub mod process;
pub mod proxy;
pub mod routes;
pub mod sched;
pub mod sriov;
pub mod sysctl;
