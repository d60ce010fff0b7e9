//! What a real kube-proxy pins to a flagged node is let go.

use anyhow::Result;
use nodefence_tests::kube::{Mode, in_nftables_mode, pinned};

#[test]
fn affinity_in_nftables_mode() -> Result<()> {
    in_nftables_mode(pinned::affinity_moves)
}

#[test]
fn affinity_in_iptables_mode() -> Result<()> {
    pinned::affinity_moves(Mode::Iptables)
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        pinned::affinity_moves(Mode::Ipvs)
    }
}
