//! Lines of `status` that few nodes have.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use nodefence_common::{Addr, BackendEntry, MAX_PORTS, PortKey, port_flags};
use nodefence_tests::{
    Agent, Cluster, Family, Options, Place,
    agent::PINNED_MAPS,
    client::{UdpConn, wait_until},
    topology::Service,
};
use serde_json::json;

use super::common::Kernel;

/// For what is not promised.
const LIMIT: Duration = Duration::from_secs(60);

/// What it says to people has this line.
fn says(agent: &Agent, line: &str) -> Result<()> {
    has(agent, line, |found| found == line)
}

/// A line of it is so.
fn has(agent: &Agent, what: &str, is_so: impl Fn(&str) -> bool) -> Result<()> {
    let there = || agent.expect(&["status", "-o", "wide"]).is_ok_and(|text| text.lines().any(&is_so));
    wait_until(what, LIMIT, there)
        .map(drop)
        .with_context(|| agent.expect(&["status", "-o", "wide"]).unwrap_or_default())
}

#[test]
fn what_was_deleted_from_conntrack() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--proxy", "nftables"])?;
    let dns = cluster.service(Service::Dns, Place::Outside, Family::V4);
    let _pinned = UdpConn::connect_to(&cluster.client, dns, "node-b", LIMIT)?;
    agent.flag("node-b")?;
    // Of node B's pod UDP and SCTP are requests of their own; of TCP nothing was listed. What a filter deletes the kernel does not count.
    let deleted = match Kernel::here()?.families_by_filter() {
        0 => "1 conntrack entries of UDP and SCTP, 0 of TCP".to_owned(),
        families => {
            format!("0 conntrack entries of UDP and SCTP, 0 of TCP, {} requests by filter", 2 * families)
        }
    };
    says(&agent, &format!("Stale           node-b: {deleted}"))
}

#[test]
fn a_program_that_runs_ahead_of_ours() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let ns = &cluster.a.ns;
    let file = cluster.cluster_file();
    let agent = Agent::start_with(ns, "node-a", &cluster.interfaces(), &file, &["--tc", "clsact"])?;
    // At one priority the newest filter comes first. It has no verdict: -1, TC_ACT_UNSPEC.
    let unspecified = u32::MAX;
    ns.feed(
        "sh",
        &format!("tc filter add dev eth0 egress protocol all prio 1 handle 2 bpf da bytecode '1,6 0 0 {unspecified}'"),
    )?;
    says(&agent, "                runs ahead of ours: bpf (id 0) at clsact egress prio 1")
}

#[test]
fn a_flag_of_a_node_that_left_the_file() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    agent.expect(&["flag", "node-b", "--for", "forever", "--reason", "disk blocked"])?;
    let file = cluster.cluster_file();
    agent.rewrite_cluster_file(&file.replace("name: node-b", "name: node-z"))?;
    says(
        &agent,
        "Flagged         node-b (not in the cluster file): flagged by root until unflagged: disk blocked",
    )?;
    let lines = agent.expect(&["status", "-o", "wide"])?;
    ensure!(!lines.contains("Flagged         none"), "{lines}");
    Ok(())
}

/// No cause of this version makes such claims; an agent that knows one may have left them.
#[test]
fn claims_that_no_person_made_and_are_too_many() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = cluster.agent_with(&["--auto", "enforce"])?;
    agent.kill();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let claims = ["node-b", "node-c"].map(|node| {
        json!({
            "node": node, "source": "hung", "by": "", "reason": "it owes answers", "evidence": null,
            "since": "2026-01-01T00:00:00Z", "raised_boot_ns": 1_000_000_000_u64, "ends_boot_ns": null, "until": null
        })
    });
    let file = json!({"version": 2, "boot_id": boot_id.trim(), "claims": claims, "released": []});
    std::fs::write(agent.socket().with_file_name("flags.json"), file.to_string())?;
    agent.restart(&[])?;
    says(
        &agent,
        "Automatic       enforce, at most 1/3 of all nodes, of each zone and of each pool (claims that no person made)",
    )?;
    let withheld = "  NF15  of all nodes 2 are claimed and 1 may be: no claim that no person made is enforced there since ";
    has(&agent, withheld, |line| line.starts_with(withheld))
}

#[test]
fn host_network_ports_that_do_not_fit() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    // Somebody else has filled the map up.
    cluster.a.ns.run(|| -> Result<()> {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/ports")).and_then(Map::from_map_data)?;
        let mut ports: HashMap<_, PortKey, u32> = map.try_into()?;
        let pods = (0..=1).flat_map(|pod| (0..=u16::MAX).map(move |port| (Addr::v4([10, 99, 0, pod]), port)));
        let full = |(address, port)| {
            ports.insert(&PortKey::exempt(address, port, 6), &port_flags::EXEMPT, 0).is_err()
        };
        let before_full = pods.into_iter().position(full).context("it has room for more")?;
        ensure!(before_full < MAX_PORTS as usize, "{before_full}");
        Ok(())
    })?;
    let port = "port: 9100, protocol: tcp, hostNetwork: true }\n";
    let line = format!("      - {{ address: \"{}\", {port}", cluster.b.address(Family::V4));
    let file = cluster.cluster_file();
    ensure!(file.contains(&line), "{file}");
    agent.rewrite_cluster_file(&file.replace(&line, &format!("{line}{}", line.replace("9100", "9101"))))?;
    says(&agent, "  NF20  1 host-network ports do not fit and pass")
}

/// Somebody else deletes a backend. After each step of the comparison the agent rests some 600 times as long as it took.
#[test]
fn an_entry_that_somebody_else_deleted() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--compare-every", "1s"])?;
    let pod = Addr::from(cluster.b.pod_address(Family::V4));
    cluster.a.ns.run(move || -> Result<()> {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/backends")).and_then(Map::from_map_data)?;
        let mut backends: HashMap<_, Addr, BackendEntry> = map.try_into()?;
        Ok(backends.remove(&pod)?)
    })?;
    says(
        &agent,
        "  NF18  1 entries were changed by somebody else, and corrected since the agent began (see the log)",
    )
}

/// An observed node exempts nothing.
#[test]
fn ports_that_would_be_exempt() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let last = cluster.services_file_with(|_, node| (node.name == "node-b").then_some(""));
    let observe = ["--mode", "observe", "--proxy", "nftables"];
    let agent = Agent::start_with(&cluster.a.ns, "node-a", &["eth0"], &last, &observe)?;
    let line = "Would exempt    6 more ports, were what is observed enforced";
    ensure!(!agent.expect(&["status", "-o", "wide"])?.contains("Would exempt"));
    agent.flag("node-b")?;
    says(&agent, line)
}

/// A call of the thread that compares fails.
#[cfg(target_arch = "x86_64")]
#[test]
fn maps_that_could_not_be_compared() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // So long after it failed it is tried again.
    let agent = cluster.agent_with(&["--compare-every", "5s"])?;
    nodefence_tests::traced::refuse(agent.proc()?.pid(), "tables", &[libc::SYS_bpf])?;
    let line = "  NF17  the maps could not be compared: ";
    has(&agent, line, |found| found.starts_with(line) && found.contains("os error 38"))
}
