//! The ipvs room against real kernels' tables and real `ipvsadm`. Runs in VMs (`cargo xtask vm-test`): not every machine's kernel has IPVS.

mod change;
mod common;
mod ipvsadm;
mod read;
