//! The agent deletes stale flows and affinity beside a real kube-proxy.

use anyhow::Result;
use nodefence_tests::kube::{Mode, in_nftables_mode, stale};

mod iptables {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        stale::affinity_moves(Mode::Iptables)
    }
}

mod nftables {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        in_nftables_mode(stale::affinity_moves)
    }
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn affinity() -> Result<()> {
        stale::affinity_moves(Mode::Ipvs)
    }
}
