//! nodefence's rooms. `ARCHITECTURE.md` says what each may touch and which way data flows.
//!
//! What is decided is `nodefence_core`, what touches the kernel's tables is `nodefence_kernel`; both are named here as if they were rooms of this crate.
#![forbid(unsafe_code)]

pub mod agent;
pub mod cli;
pub mod doctor;
pub mod drain;
pub mod flags;
pub mod ledger;
pub mod report;
pub mod rescue;
pub mod source;

pub use nodefence_core::{cluster, enforce, plan};

pub use nodefence_kernel::{
    DATAPLANE_OBJECT, allocator, conntrack, dataplane, ipvs, proxy, routes, sched, sysctl,
};
