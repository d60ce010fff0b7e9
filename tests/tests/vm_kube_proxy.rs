//! A real kube-proxy in IPVS mode forwards to real servers.

use anyhow::Result;
use nodefence_tests::kube::{Mode, forwards};

#[test]
fn ipvs() -> Result<()> {
    forwards::holds(Mode::Ipvs)
}
