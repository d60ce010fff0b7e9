//! IPVS NAT does the forwarding. Runs in VMs (`cargo xtask vm-test`): not every machine's kernel has IPVS.
//!
//! Kernels without the fix that the probe looks for do not translate a RST that was made in place; there the agent injects it. Both
//! must look the same to clients.

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Cluster, Conn, Family, Options, Overlay, Place, Proxy,
    checks::{SOON, matrix},
    client::UdpConn,
    topology::Service,
};

fn cut(overlay: Overlay, masquerade: bool) -> Result<()> {
    let (status, counts) = matrix(Options { overlay, masquerade, proxy: Proxy::Ipvs, offloads: true })?;
    let way = status["probe_text"].as_str().context("status does not say how RSTs are made")?;
    println!("{way}: {counts:?}");
    if counts.reset == 0 {
        ensure!(counts.handed > 0, "nothing was answered: {counts:?}");
        ensure!(way.contains("RSTs are injected"), "RSTs were injected, status says: {way}");
    } else {
        ensure!(way.contains("RSTs are made in place"), "RSTs were made in place, status says: {way}");
    }
    Ok(())
}

/// IPVS itself, without nodefence.
#[test]
fn ipvs_forwards() -> Result<()> {
    for masquerade in [true, false] {
        let cluster = Cluster::new(Options { masquerade, proxy: Proxy::Ipvs, ..Options::default() })?;
        for family in [Family::V4, Family::V6] {
            for place in Place::ALL {
                for name in ["node-b", "node-c"] {
                    let ns = cluster.at(place);
                    Conn::connect_to(ns, cluster.service(Service::Web, place, family), name, SOON)?;
                    Conn::connect_to(ns, cluster.service(Service::Host, place, family), name, SOON)?;
                    UdpConn::connect_to(ns, cluster.service(Service::Dns, place, family), name, SOON)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn host_gateway() -> Result<()> {
    cut(Overlay::HostGateway, true)
}

#[test]
fn host_gateway_without_masquerade() -> Result<()> {
    cut(Overlay::HostGateway, false)
}

#[test]
fn vxlan() -> Result<()> {
    cut(Overlay::Vxlan, true)
}

#[test]
fn ipip() -> Result<()> {
    cut(Overlay::Ipip, true)
}

#[test]
fn vlan() -> Result<()> {
    cut(Overlay::Vlan, true)
}
