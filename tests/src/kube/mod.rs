//! Real parts of Kubernetes in namespaces: an API server on etcd, kube-proxy, and what kube-proxy has programmed, read back.
//!
//! The programs are those of `cargo xtask assets`. Nothing leaves the namespace in which a control plane runs: it listens on
//! an address of that namespace alone.

pub mod api;
pub mod assets;
pub mod control;
mod iptables;
mod nftables;
pub mod objects;
pub mod proxy;
pub mod rules;

pub use api::Api;
pub use control::ControlPlane;
pub use nodefence::proxy::Mode;
pub use proxy::KubeProxy;
pub use rules::{Rules, Virtual, Way};
