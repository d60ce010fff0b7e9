//! IPVS NAT does the forwarding. Runs in VMs (`cargo xtask vm-test`): not every machine's kernel has IPVS.
//!
//! Kernels without the fix that the probe looks for do not translate a RST that was made in place; there the agent injects it. Both
//! must look the same to clients.

use std::{process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use nodefence_common::{Config, config_flags};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Overlay, Place, Proxy,
    checks::{SOON, matrix},
    client::{UdpConn, wait_until},
    topology::Service,
};
use serde_json::Value;

fn cut(options: Options) -> Result<()> {
    let (status, counts) = matrix(Options { proxy: Proxy::Ipvs, ..options })?;
    let way = status["probe_text"].as_str().context("status does not say how RSTs are made")?;
    println!("{way}: {counts:?}");
    // What the probe found, not what it falls back to: it must have come to an answer.
    let translates = status["probe"]["ipvs_translates"]["found"].as_bool();
    let translates =
        translates.with_context(|| format!("the probe of IPVS found nothing: {}", status["probe"]))?;
    let in_place = [counts.reset, counts.refused, counts.unreachable];
    if translates {
        ensure!(way.contains("RSTs are made in place"), "status says: {way}");
        ensure!(counts.reset > 0 && counts.refused > 0, "nothing was answered in place: {counts:?}");
        // Of CHECKSUM_PARTIAL datagrams the sum does not stand in the packet: those are always the agent's.
        let datagrams = if options.offloads { counts.handed } else { counts.unreachable };
        ensure!(datagrams > 0, "no datagram was answered as it should be: {counts:?}");
    } else {
        ensure!(way.contains("RSTs are injected"), "status says: {way}");
        ensure!(in_place == [0; 3], "answered in place, which IPVS does not translate: {counts:?}");
        ensure!(counts.handed > 0, "nothing was answered: {counts:?}");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    // The oldest kernel of the matrix is there for this: Debian 11's has no such fix.
    ensure!(translates != release.starts_with("5.10."), "{release}: the probe found {translates}");
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
    cut(Options::default())
}

#[test]
fn host_gateway_without_masquerade() -> Result<()> {
    cut(Options { masquerade: false, ..Options::default() })
}

/// Sums stand on the wire, so datagrams are not CHECKSUM_PARTIAL either: where IPVS translates, all is answered in place.
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

/// In the order in which they can be loaded.
const MODULES: [&str; 3] = ["ip_vs", "ip_vs_rr", "ip_vs_wrr"];

fn modprobe(args: &[&str]) -> Result<()> {
    let output = Command::new("modprobe").args(args).output().context("start modprobe")?;
    ensure!(output.status.success(), "modprobe {}: {output:?}", args.join(" "));
    Ok(())
}

/// IPVS is unloaded while this lives.
struct Unloaded;

impl Unloaded {
    fn new() -> Result<Self> {
        let this = Self;
        MODULES.iter().rev().try_for_each(|module| modprobe(&["-r", module]))?;
        Ok(this)
    }
}

impl Drop for Unloaded {
    fn drop(&mut self) {
        for module in MODULES {
            let _loaded = modprobe(&[module]);
        }
    }
}

/// At boot the agent is up before kube-proxy loads IPVS: what it found without holds no more.
#[test]
fn ipvs_that_comes_late_is_probed() -> Result<()> {
    let unloaded = Unloaded::new()?;
    let ns = Arc::new(Netns::new("late")?);
    ns.ip("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.9.0.1/24 dev v0")?;
    let agent = Agent::start(&ns, "node-a", &["v0"], "nodes:\n- {name: node-a, address: 10.9.0.1}\n")?;
    let finding = || -> Result<Value> {
        let status: Value = serde_json::from_str(&agent.expect(&["status", "-o", "json"])?)?;
        Ok(status["probe"]["ipvs_translates"].clone())
    };
    ensure!(finding()?["not_needed"].is_string(), "without IPVS: {}", finding()?);
    drop(unloaded);
    let found = || finding().is_ok_and(|finding| finding["found"].is_boolean());
    wait_until("IPVS is probed", Duration::from_secs(120), found).with_context(|| agent.log())?;
    let translates = finding()?["found"] == true;
    let flags = ns.run(|| -> Result<u32> {
        let map = MapData::from_pin("/sys/fs/bpf/nodefence/v1/config").and_then(Map::from_map_data)?;
        let config: Array<_, Config> = map.try_into()?;
        Ok(config.get(&0, 0)?.flags)
    })?;
    ensure!((flags & config_flags::INJECT == 0) == translates, "flags {flags:#x}, translated: {translates}");
    Ok(())
}
