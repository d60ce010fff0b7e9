//! `nodefence audit` and `repair` beside a real kube-proxy.

use anyhow::Result;
use nodefence_tests::kube::{Mode, in_nftables_mode, rolling};

#[test]
fn rolling_restarts_beside_nftables() -> Result<()> {
    in_nftables_mode(rolling::holds)
}

#[test]
fn rolling_restarts_beside_iptables() -> Result<()> {
    rolling::holds(Mode::Iptables)
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn rolling_restarts() -> Result<()> {
        rolling::holds(Mode::Ipvs)
    }
}
