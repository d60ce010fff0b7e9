//! Flagged nodes are drained in IPVS and restored, with the real agent, `ipvsadm`, servers and clients. Runs in VMs (`cargo xtask vm-test`).

mod apart;
mod common;
mod end;
mod ending;
mod exact;
mod life;
mod off;
mod schedulers;
mod steps;
mod tables;
mod vanish;
