//! `nodefence audit` and `repair` beside nftables rules like kube-proxy's: conntrack's entries, and affinity. `vm_audit` has the same for IPVS.

mod affinity;
mod common;
mod flows;
mod syncs;
