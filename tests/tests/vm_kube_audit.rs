//! `nodefence audit` and `repair` beside a real kube-proxy in IPVS mode.

use std::time::Duration;

use anyhow::Result;
use nodefence_tests::kube::{Mode, rolling};

/// With it in its environment `cargo xtask vm-test` takes its time.
const LONG: &str = "NODEFENCE_LONG_TESTS";

#[test]
fn rolling_restarts_beside_ipvs() -> Result<()> {
    let seconds = if std::env::var_os(LONG).is_some() { 600 } else { 120 };
    rolling::holds(Mode::Ipvs, Duration::from_secs(seconds))
}
