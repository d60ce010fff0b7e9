//! IPVS NAT forwards. Runs in VMs (`cargo xtask vm-test`), since not every machine's kernel has IPVS.
//!
//! Kernels without the fix for which the probe looks do not translate a RST that was made in place. On these kernels the agent injects RSTs. Clients must see no
//! difference.

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Cluster, Conn, Family, Options, Overlay, Place, Proxy,
    checks::{SOON, matrix},
    client::UdpConn,
    kernel,
    topology::Service,
};

fn cut(options: Options) -> Result<()> {
    let (status, counts) = matrix(Options { proxy: Proxy::Ipvs, ..options })?;
    let way = status["probe_text"].as_str().context("status does not say how RSTs are made")?;
    println!("{way}: {counts:?}");
    // The probe must have a finding, not only a fallback.
    let translates = status["probe"]["ipvs_translates"]["found"].as_bool();
    let translates =
        translates.with_context(|| format!("the probe of IPVS found nothing: {}", status["probe"]))?;
    let in_place = [counts.reset, counts.refused, counts.unreachable];
    if translates {
        ensure!(way.contains("RSTs are made in place"), "status says: {way}");
        ensure!(counts.reset > 0 && counts.refused > 0, "nothing was answered in place: {counts:?}");
        // A CHECKSUM_PARTIAL datagram does not have its checksum in the packet, so the agent always answers it.
        let datagrams = if options.offloads { counts.handed } else { counts.unreachable };
        ensure!(datagrams > 0, "no datagram was answered in the expected way: {counts:?}");
    } else {
        ensure!(way.contains("RSTs are injected"), "status says: {way}");
        ensure!(
            in_place == [0; 3],
            "packets were answered in place, which IPVS does not translate: {counts:?}"
        );
        ensure!(counts.handed > 0, "nothing was answered: {counts:?}");
    }
    let release = kernel::release()?;
    // The oldest kernel of the test matrix, Debian 11's, has no such fix.
    ensure!(translates != release.starts_with("5.10."), "{release}: the probe found {translates}");
    Ok(())
}

/// IPVS forwards without nodefence.
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
    cut(Options::default())
}

#[test]
fn host_gateway_without_masquerade() -> Result<()> {
    cut(Options { masquerade: false, ..Options::default() })
}

/// Without offloads no datagram is CHECKSUM_PARTIAL. If IPVS translates, all packets are answered in place.
#[test]
fn host_gateway_without_offloads() -> Result<()> {
    cut(Options { offloads: false, ..Options::default() })
}

#[test]
fn vxlan() -> Result<()> {
    cut(Options { overlay: Overlay::Vxlan, ..Options::default() })
}

#[test]
fn ipip() -> Result<()> {
    cut(Options { overlay: Overlay::Ipip, ..Options::default() })
}

#[test]
fn vlan() -> Result<()> {
    cut(Options { overlay: Overlay::Vlan, ..Options::default() })
}

/// This module runs alone, since it checks a promised time. [`matrix`] checks the same time beside other tests.
mod alone {
    use super::*;

    #[test]
    fn idle_clients_are_freed() -> Result<()> {
        let cluster = Cluster::new(Options { proxy: Proxy::Ipvs, ..Options::default() })?;
        let mut agent = cluster.agent()?;
        cluster.idle_clients_are_freed(&mut agent).map(drop).with_context(|| agent.log())
    }
}
