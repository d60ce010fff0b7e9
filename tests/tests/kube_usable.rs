//! `plan::usable` beside a real kube-proxy.

use anyhow::Result;
use nodefence_tests::kube::{Mode, in_nftables_mode, usable};

#[test]
fn nftables() -> Result<()> {
    in_nftables_mode(usable::holds)
}

#[test]
fn iptables() -> Result<()> {
    usable::holds(Mode::Iptables)
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn endpoints() -> Result<()> {
        usable::holds(Mode::Ipvs)
    }
}
