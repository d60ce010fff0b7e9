//! What a real kube-proxy pins to a flagged node is let go. IPVS, which wants a module, in `vm_kube_pinned`.

use anyhow::Result;
use nodefence_tests::kube::{Mode, pinned};

#[test]
fn affinity_in_nftables_mode() -> Result<()> {
    pinned::affinity_moves(Mode::Nftables)
}

#[test]
fn affinity_in_iptables_mode() -> Result<()> {
    pinned::affinity_moves(Mode::Iptables)
}
