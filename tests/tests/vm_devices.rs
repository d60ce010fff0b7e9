//! The kernel programs on devices that not every machine's kernel has: VLAN and ipip. Runs in VMs (`cargo xtask vm-test`).

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Agent, Cluster, Options, Overlay, bare::matrix};
use serde_json::Value;

fn both(overlay: Overlay, interfaces: &[&'static str]) -> Result<()> {
    matrix(Options { overlay, ..Options::default() }, interfaces)?;
    matrix(Options { overlay, masquerade: false, offloads: false, ..Options::default() }, interfaces)
}

/// The VLAN tag is in the skb's metadata.
#[test]
fn vlan_accelerated() -> Result<()> {
    both(Overlay::Vlan, &["eth0"])
}

/// The programs are attached to the VLAN device itself, where packets have no tag.
#[test]
fn vlan_device() -> Result<()> {
    both(Overlay::Vlan, &["eth0.5"])
}

/// The VLAN tag is in the frame.
#[test]
fn vlan_in_frame() -> Result<()> {
    both(Overlay::VlanInFrame, &["eth0"])
}

/// One VLAN tag is in the metadata, and one in the frame.
#[test]
fn two_tags() -> Result<()> {
    both(Overlay::QinQ, &["eth0"])
}

/// The programs are attached to the device below the VLAN devices that the routes name, and see the tags. Challenges are injected at the VLAN devices.
#[test]
fn idle_clients_behind_a_vlan_are_challenged_through_the_device_below() -> Result<()> {
    for overlay in [Overlay::Vlan, Overlay::VlanInFrame, Overlay::QinQ] {
        let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
        let mut agent =
            Agent::start_with(&cluster.a.ns, cluster.a.name, &["eth0"], &cluster.cluster_file(), &[])?;
        let json =
            |verb| -> Result<Value> { Ok(serde_json::from_str(&agent.expect(&[verb, "-o", "json"])?)?) };
        let status = json("status")?;
        let backends = json("backends")?;
        ensure!(status["uncovered"] == 0, "{overlay:?}: {status}");
        ensure!(backends["items"][0]["interface"] == "eth0", "{overlay:?}: {backends}");
        let freed = cluster.idle_clients_are_freed(&mut agent);
        freed.with_context(|| format!("{overlay:?}; the agent's log:\n{}", agent.log()))?;
    }
    Ok(())
}

/// Packets of the tunnel device have no Ethernet header. The outer packets to node B must pass.
#[test]
fn ipip() -> Result<()> {
    both(Overlay::Ipip, &["ipip0", "eth0"])
}
