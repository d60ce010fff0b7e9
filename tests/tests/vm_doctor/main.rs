//! What `doctor` and `status` say of this machine, held to what other programs say of it. Runs in VMs (`cargo xtask vm-test`): IPVS is loaded, and each kernel
//! is another one.

mod common;
mod doctor;
mod full;
mod seldom;
mod status;
