//! The decisions of nodefence, without effects: the model of the cluster, claims and limits, the owner of verdicts, plans of tables, IPVS
//! and audits, and types for the kernel's tables. No clock, socket, file or lock.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod conntrack;
pub mod enforce;
mod family;
pub mod ipvs;
pub mod ledger;
mod list;
pub mod plan;
pub mod proxy;
pub mod rescue;
pub mod routes;

pub use family::Family;
