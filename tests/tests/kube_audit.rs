//! `nodefence audit` and `repair` beside a real kube-proxy, natively. IPVS, which wants a module, in `vm_kube_audit`.

use anyhow::Result;
use nodefence_tests::kube::{Mode, rolling};

#[test]
fn rolling_restarts_beside_nftables() -> Result<()> {
    rolling::holds(Mode::Nftables)
}

#[test]
fn rolling_restarts_beside_iptables() -> Result<()> {
    rolling::holds(Mode::Iptables)
}
