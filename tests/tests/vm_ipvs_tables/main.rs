//! The ipvs module against real kernels' tables and real `ipvsadm`. Runs in VMs (`cargo xtask vm-test`), since not every machine's kernel has IPVS.

mod change;
mod common;
mod ipvsadm;
mod read;
