//! `nodefence audit` and `repair` beside nftables as kube-proxy lays them out: conntrack's entries. What is of IPVS is in
//! `vm_audit`.

mod common;
mod flows;
