//! `plan::usable` beside a real kube-proxy, natively. IPVS, which wants a module, in `vm_kube_usable`.

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
