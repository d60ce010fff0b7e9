//! Sysctls and conntrack's counters.

use std::net::UdpSocket;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Cluster,
    audit::{Audit, outcomes, repair, wait_faults},
    client::wait_until,
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

const LOOSE: &str = "netfilter/nf_conntrack_tcp_loose";
const FAULT: &str = "sysctl net.netfilter.nf_conntrack_tcp_loose";

#[test]
fn a_sysctl_that_breaks_the_promise() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    cluster.a.ns.sysctl(LOOSE, "0")?;
    wait_faults(&agent, &[FAULT], LIMIT)?;
    let read = || cluster.a.ns.exec(&format!("cat /proc/sys/net/{LOOSE}"));
    ensure!(repair(&agent, &["--kind", "sysctl", "--dry-run"])? == outcomes([("sysctl planned", 1)]));
    ensure!(repair(&agent, &["--kind", "stale-udp"])? == outcomes([]));
    ensure!(read()?.trim() == "0");
    ensure!(repair(&agent, &["--kind", "sysctl"])? == outcomes([("sysctl mended", 1)]));
    ensure!(read()?.trim() == "1");
    nothing_for_a_while(&agent)
}

/// Packets that conntrack drops because every source port is taken: two clients, one port.
fn clash(cluster: &Cluster) -> Result<()> {
    cluster.client.run(|| {
        for _ in 0..2 {
            UdpSocket::bind("192.0.2.2:0")?.send_to(b"x", "10.2.0.13:9999")?;
        }
        Ok(())
    })
}

#[test]
fn packets_that_conntrack_drops() -> Result<()> {
    let cluster = cluster()?;
    cluster.a.ns.nft(
        "table ip clash {
            chain post {
                type nat hook postrouting priority 90
                udp dport 9999 snat to 10.2.0.11:5000
            }
        }",
    )?;
    let agent = agent(&cluster, &[])?;
    nothing_for_a_while(&agent)?;
    // Once is no fault.
    clash(&cluster)?;
    let young = || {
        Audit::of(&agent).is_ok_and(|audit| audit.in_state("new").iter().any(|d| d.contains("insert_failed")))
    };
    wait_until("they are counted", LIMIT, young)
        .with_context(|| format!("{:?}", cluster.a.ns.exec("conntrack -S")))?;
    nothing_again(&agent)?;
    // Again and again is one.
    let mut faults = Vec::new();
    wait_until("a fault", LIMIT, || {
        faults = clash(&cluster)
            .and_then(|()| Audit::of(&agent))
            .map_or_else(|_| Vec::new(), |audit| audit.in_state("fault"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        faults.iter().any(|fault| fault == "conntrack-drops insert_failed")
    })
    .with_context(|| agent.log())?;
    ensure!(faults.iter().all(|fault| fault.starts_with("conntrack-drops ")), "{faults:?}");
    let kinds = ["--kind", "conntrack-drops"];
    ensure!(repair(&agent, &kinds)?.keys().all(|outcome| outcome == "conntrack-drops left"));
    nothing_again(&agent)
}

fn nothing_again(agent: &nodefence_tests::Agent) -> Result<()> {
    let nothing = || Audit::of(agent).is_ok_and(|audit| audit.report["differences"] == serde_json::json!([]));
    wait_until("nothing differs", LIMIT, nothing).map(drop).with_context(|| agent.log())
}
