//! What a real kube-proxy pins to a flagged node in IPVS mode is let go.

use anyhow::Result;
use nodefence_tests::kube::{Mode, pinned};

#[test]
fn affinity_in_ipvs_mode() -> Result<()> {
    pinned::affinity_moves(Mode::Ipvs)
}
