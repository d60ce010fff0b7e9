//! What a real kube-proxy pins to a flagged node is let go.

use anyhow::Result;
use nodefence_tests::kube::{Mode, in_nftables_mode, pinned};

mod iptables {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        pinned::affinity_moves(Mode::Iptables)
    }
}

mod nftables {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        in_nftables_mode(pinned::affinity_moves)
    }
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        pinned::affinity_moves(Mode::Ipvs)
    }
}
