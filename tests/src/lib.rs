//! The library of the integration tests: namespaces, topologies, servers, clients and captures.
//!
//! Nothing here changes the machine's own network namespace. A thread holds each [`Netns`]. So everything in it (devices, mounts, pins, child processes) ends
//! with the test's process, for whatever reason that ended.

pub mod agent;
pub mod ambush;
pub mod audit;
pub mod bare;
pub mod bin_path;
pub mod capture;
pub mod checks;
pub mod client;
pub mod cluster;
pub mod cut;
pub mod disk;
mod each_topology;
pub mod expected;
pub mod four_nodes;
pub mod incident;
pub mod interrupt;
pub mod ipvs;
pub mod kernel;
pub mod kube;
pub mod left;
pub mod load;
pub mod model;
pub mod netns;
pub mod packet;
pub mod packet_check;
pub mod packet_frame;
pub mod packet_wire;
pub mod packet_world;
pub mod proc;
pub mod promises;
pub mod still;
pub mod svg;
pub mod tcp_info;
pub mod topology;
pub mod traced;
pub mod tun;
pub mod unlisted;
pub mod waits;
pub mod watch;
pub mod ways;

pub use agent::Agent;
pub use bin_path::{bin, nodefence_command};
pub use client::{Conn, Outcome};
pub use netns::Netns;
pub use proc::Proc;
pub use topology::{Cluster, Family, Node, Options, Overlay, Place, Proxy};

/// Whether this machine's processor is emulated. An emulated processor sometimes stands still for seconds.
pub fn emulated() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG"))
}

/// Whether `NODEFENCE_LONG_TESTS` is set. Then tests use the default periods of the kernel, kube-proxy and the command line, in place of shorter ones.
pub fn long() -> bool {
    std::env::var_os("NODEFENCE_LONG_TESTS").is_some()
}
