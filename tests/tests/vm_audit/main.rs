//! `nodefence audit` and `repair` on real IPVS tables: each planted fault is found and nothing else, each repair mends its own kind and no other.
//! Runs in VMs (`cargo xtask vm-test`).

mod common;
mod draining;
mod flagged;
mod planted;
