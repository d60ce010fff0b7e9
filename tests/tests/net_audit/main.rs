//! `nodefence audit` and `repair` beside nftables as kube-proxy lays them out: conntrack's entries, and affinity. What is of IPVS is
//! in `vm_audit`.

mod affinity;
mod common;
mod flows;
mod syncs;
