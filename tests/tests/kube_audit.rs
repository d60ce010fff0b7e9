//! `nodefence audit` and `repair` beside a real kube-proxy, natively. IPVS, which wants a module, in `vm_kube_audit`.

use std::time::Duration;

use anyhow::Result;
use nodefence_tests::kube::{Mode, rolling};

/// A difference is a fault after two of kube-proxy's syncs: longer than that on either side of its restart.
const LENGTH: Duration = Duration::from_secs(150);

#[test]
fn rolling_restarts_beside_nftables() -> Result<()> {
    rolling::holds(Mode::Nftables, LENGTH)
}

#[test]
fn rolling_restarts_beside_iptables() -> Result<()> {
    rolling::holds(Mode::Iptables, LENGTH)
}
