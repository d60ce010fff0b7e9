//! Compares what `doctor` and `status` print about this machine with what other programs print. Runs in VMs (`cargo xtask vm-test`), where IPVS is loaded and
//! kernels differ.

mod common;
mod doctor;
mod full;
mod seldom;
mod status;
