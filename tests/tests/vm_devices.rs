//! The kernel programs on devices that not every machine's kernel has: VLAN and ipip. Runs in VMs (`cargo xtask vm-test`).

use anyhow::Result;
use nodefence_tests::{Options, Overlay, bare::matrix};

fn both(overlay: Overlay, interfaces: &[&'static str]) -> Result<()> {
    matrix(Options { overlay, ..Options::default() }, interfaces)?;
    matrix(Options { overlay, masquerade: false, offloads: false, ..Options::default() }, interfaces)
}

/// The tag is in the skb's metadata.
#[test]
fn vlan_accelerated() -> Result<()> {
    both(Overlay::Vlan, &["eth0"])
}

/// Attached to the VLAN device itself: no tag is seen.
#[test]
fn vlan_device() -> Result<()> {
    both(Overlay::Vlan, &["eth0.5"])
}

/// The tag is in the frame.
#[test]
fn vlan_in_frame() -> Result<()> {
    both(Overlay::VlanInFrame, &["eth0"])
}

/// One tag in the metadata, one in the frame.
#[test]
fn two_tags() -> Result<()> {
    both(Overlay::QinQ, &["eth0"])
}

/// No Ethernet header, and outer packets to node B that must pass.
#[test]
fn ipip() -> Result<()> {
    both(Overlay::Ipip, &["ipip0", "eth0"])
}
