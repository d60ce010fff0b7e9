//! `nodefence audit` and `repair` beside a real kube-proxy in IPVS mode, and in iptables mode on other kernels.

use std::time::Duration;

use anyhow::Result;
use nodefence_tests::kube::{Mode, rolling};

/// With it in its environment `cargo xtask vm-test` takes its time.
const LONG: &str = "NODEFENCE_LONG_TESTS";

/// A difference is a fault after two of kube-proxy's syncs: so long on either side of its restart.
const LENGTH: Duration = Duration::from_secs(120);

#[test]
fn rolling_restarts_beside_ipvs() -> Result<()> {
    let length = if std::env::var_os(LONG).is_some() { Duration::from_secs(600) } else { LENGTH };
    rolling::holds(Mode::Ipvs, length)
}

/// Other kernels differ in how conntrack is read, by dump or by filter: that takes no ten minutes.
#[test]
fn rolling_restarts_beside_iptables() -> Result<()> {
    rolling::holds(Mode::Iptables, LENGTH)
}
