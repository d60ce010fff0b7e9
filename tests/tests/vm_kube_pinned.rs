//! What a real kube-proxy pins to a flagged node in its three modes is let go, on other kernels.

use anyhow::Result;
use nodefence_tests::kube::{Mode, in_nftables_mode, pinned};

#[test]
fn affinity_in_ipvs_mode() -> Result<()> {
    pinned::affinity_moves(Mode::Ipvs)
}

#[test]
fn affinity_in_iptables_mode() -> Result<()> {
    pinned::affinity_moves(Mode::Iptables)
}

#[test]
fn affinity_in_nftables_mode() -> Result<()> {
    in_nftables_mode(pinned::affinity_moves)
}
