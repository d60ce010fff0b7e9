//! A cluster, an agent that reports faults soon, and the entries of conntrack.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nodefence::conntrack::{Conntrack, Family as Half, Flow};
use nodefence_tests::{
    Agent, Cluster, Family, Options, Place,
    audit::{Audit, BOTH, FAULT_AFTER},
    client::{UdpConn, wait_until},
    topology::Service,
};

/// A generous limit, since guests stand still now and then.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn cluster() -> Result<Cluster> {
    let cluster = Cluster::new(Options::default())?;
    // Idle flows must not lapse during a test.
    cluster.a.ns.sysctl("netfilter/nf_conntrack_udp_timeout", "600")?;
    cluster.a.ns.sysctl("netfilter/nf_conntrack_udp_timeout_stream", "600")?;
    Ok(cluster)
}

pub(super) fn agent(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let mut args = vec!["--fault-after", FAULT_AFTER];
    if !extra.contains(&"--proxy") {
        args.extend(["--proxy", "nftables"]);
    }
    args.extend(extra);
    let file = cluster.with_own_backends(&cluster.services_file());
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &args)
}

/// Checks for 3 s that the audit finds no fault, and that nothing differs in the end. A difference is a fault after 2 s, and a reading comes each half second.
pub(super) fn nothing_for_a_while(agent: &Agent) -> Result<()> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let audit = Audit::of(agent)?;
        ensure!(audit.in_state("fault").is_empty(), "{:#}\n{}", audit.report["differences"], agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    let audit = Audit::of(agent)?;
    ensure!(audit.report["differences"] == serde_json::json!([]), "{:#}", audit.report["differences"]);
    Ok(())
}

/// Waits until the audit has exactly these differences, all of them new or all of them faults.
pub(super) fn wait_seen(agent: &Agent, differences: &[String]) -> Result<()> {
    let seen = || {
        Audit::of(agent)
            .is_ok_and(|audit| ["new", "fault"].iter().any(|state| audit.in_state(state) == differences))
    };
    wait_until("the differences are seen", LIMIT, seen).map(drop).with_context(|| agent.log())
}

/// UDP clients of the DNS Service, `count` for each backend and IP version. Each client has got an answer.
pub(super) fn dns_clients(cluster: &Cluster, count: usize) -> Result<Vec<UdpConn>> {
    let mut all = Vec::new();
    for family in BOTH {
        let dns = cluster.service(Service::Dns, Place::Outside, family);
        for name in ["node-b", "node-c"] {
            for _ in 0..count {
                all.push(UdpConn::connect_to(&cluster.client, dns, name, LIMIT)?);
            }
        }
    }
    Ok(all)
}

/// Node A's entries whose answers come from this address.
pub(super) fn entries(cluster: &Cluster, from: IpAddr) -> Result<Vec<Flow>> {
    cluster.a.ns.run(move || {
        let half = if from.is_ipv4() { Half::V4 } else { Half::V6 };
        let dump = Conntrack::open_all_zones()?.dump(half, |flow| flow.reply.src == from.into())?;
        Ok(dump.flows)
    })
}

/// All UDP entries except for those of node B's pod. A repair must not change them.
pub(super) fn others(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let b = BOTH.map(|family| cluster.b.pod_address(family));
    let flows = cluster.a.ns.run(move || -> Result<Vec<Flow>> {
        let mut all = Vec::new();
        for half in [Half::V4, Half::V6] {
            let others = |flow: &Flow| flow.orig.protocol == 17 && !b.contains(&IpAddr::from(flow.reply.src));
            all.extend(Conntrack::open_all_zones()?.dump(half, others)?.flows);
        }
        Ok(all)
    })?;
    Ok(flows.iter().map(|flow| format!("{flow} {:#x}", flow.id)).collect())
}

pub(super) fn count_to_b(cluster: &Cluster) -> Result<usize> {
    let mut count = 0;
    for family in BOTH {
        let from = entries(cluster, cluster.b.pod_address(family)).context("entries of B")?;
        count += from.iter().filter(|flow| flow.orig.protocol == 17).count();
    }
    Ok(count)
}

/// The audit's subject for flows from a node port of node A to B's DNS server.
pub(super) fn dns_to_b(cluster: &Cluster, family: Family) -> String {
    let to = cluster.service(Service::Dns, Place::Outside, family);
    let b = std::net::SocketAddr::new(cluster.b.pod_address(family), Service::Dns.ports().1);
    format!("flow UDP {to} -> {b}")
}
