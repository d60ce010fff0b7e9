//! `plan::usable` beside a real kube-proxy.

use anyhow::Result;
use nodefence_tests::kube::{Mode, usable};

#[test]
fn nftables() -> Result<()> {
    usable::holds(Mode::Nftables)
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
