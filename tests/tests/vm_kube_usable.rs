//! `plan::usable` beside a real kube-proxy in IPVS mode.

use anyhow::Result;
use nodefence_tests::kube::{Mode, usable};

#[test]
fn ipvs() -> Result<()> {
    usable::holds(Mode::Ipvs)
}
