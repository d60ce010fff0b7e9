//! The modules of nodefence. `ARCHITECTURE.md` says what each may touch and which way data flows.
//!
//! The crate `nodefence_core` decides, and `nodefence_kernel` touches the kernel's tables. Their modules are re-exported here, as if they were
//! modules of this crate.
#![forbid(unsafe_code)]

mod causes;
mod read;
mod replace;

pub mod agent;
pub mod cli;
pub mod controller;
pub mod crds;
pub mod doctor;
pub mod drain;
pub mod flags;
pub mod http;
pub mod last_view;
pub mod ledger;
pub mod off;
pub mod report;
pub mod rescue;
pub mod source;

pub use nodefence_core::{cluster, enforce, plan};

pub use nodefence_kernel::{
    DATAPLANE_OBJECT, allocator, conntrack, dataplane, ipvs, process, proxy, routes, sched, sysctl,
};
