//! nodefence's rooms. `ARCHITECTURE.md` says what each may touch and which way data flows.

/// The eBPF object of this build.
pub static DATAPLANE_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nodefence-dataplane"));

pub mod agent;
pub mod cli;
pub mod cluster;
pub mod conntrack;
pub mod dataplane;
pub mod doctor;
pub mod enforce;
pub mod flags;
pub mod ipvs;
pub mod ledger;
mod netlink;
mod nfnetlink;
mod nftables;
pub mod plan;
pub mod proxy;
pub mod report;
pub mod rescue;
pub mod routes;
mod sysctl;
pub mod takeout;
