//! `nodefence audit` and `repair` on real IPVS tables. The audit finds exactly the planted faults, and each repair mends only its own kind. Runs in VMs
//! (`cargo xtask vm-test`).

mod common;
mod draining;
mod flagged;
mod planted;
