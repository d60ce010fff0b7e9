//! `nodefence audit` and `repair` beside a real kube-proxy in IPVS mode, and in iptables mode on other kernels.

use anyhow::Result;
use nodefence_tests::kube::{Mode, rolling};

#[test]
fn rolling_restarts_beside_ipvs() -> Result<()> {
    rolling::holds(Mode::Ipvs)
}

/// Other kernels differ in how conntrack is read, by dump or by filter.
#[test]
fn rolling_restarts_beside_iptables() -> Result<()> {
    rolling::holds(Mode::Iptables)
}
