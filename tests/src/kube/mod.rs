//! Real parts of Kubernetes in namespaces: an API server with etcd, and kube-proxy. Also reads back what kube-proxy has programmed.
//!
//! In a guest of `cargo xtask vm-test` the API server runs outside, on the machine that emulates the guest.
//!
//! The programs are those of `cargo xtask assets`. A control plane listens only on an address of its own namespace, so nothing leaves that namespace.

pub mod alone;
pub mod api;
pub mod assets;
pub mod beside;
mod clients;
mod compact;
pub mod control;
mod controller;
pub mod drained;
pub mod faulty;
pub mod forwards;
mod grants;
pub mod hang;
mod iptables;
mod ipvs;
mod kubeconfigs;
pub mod local;
pub mod manifests;
pub mod members;
mod nftables;
pub mod objects;
pub mod orders;
mod own;
pub mod proxy;
mod relay;
pub mod rights;
pub mod rolling;
pub mod rules;
pub mod stale;
pub mod usable;
mod way;
pub mod wire;

pub use alone::Alone;
pub use api::Api;
pub use beside::{Beside, Setup, Source, in_nftables_mode};
pub use control::ControlPlane;
pub use controller::Controller;
pub use faulty::Faulty;
pub use nodefence::proxy::Mode;
pub use proxy::KubeProxy;
pub use rules::Rules;
pub use way::{Virtual, Way};
pub use wire::Wire;
