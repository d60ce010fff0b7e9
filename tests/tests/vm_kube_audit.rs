//! `nodefence audit` and `repair` beside a real kube-proxy in IPVS mode.

use std::time::Duration;

use anyhow::Result;
use nodefence_tests::kube::{Mode, rolling};

#[test]
fn ten_minutes_of_rolling_restarts() -> Result<()> {
    rolling::holds(Mode::Ipvs, Duration::from_secs(600))
}
