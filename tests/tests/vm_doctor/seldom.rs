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

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until the text of `status` has this line.
fn says(agent: &Agent, line: &str) -> Result<()> {
    has(agent, line, |found| found == line)
}

/// Waits until a line of the text of `status` passes `is_so`.
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
    // By filter the agent sends a request for UDP and one for SCTP to node B's pod. No TCP flow was listed. The kernel does not say how many entries a filter
    // deleted.
    let deleted = match Kernel::here()?.families_by_filter() {
        0 => "1 conntrack entry of UDP and SCTP, 0 of TCP".to_owned(),
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
    // Of filters with one priority the newest runs first. This filter has no verdict: -1, TC_ACT_UNSPEC.
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

/// This version of the agent makes no claims by itself, but an agent of another version may have left such claims.
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
    let withheld = "  NF15  all nodes: 2 nodes claimed, limit 1; automatic claims raised up to ";
    has(&agent, withheld, |line| line.starts_with(withheld))
}

#[test]
fn host_network_ports_that_do_not_fit() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    // Another program has filled the map.
    cluster.a.ns.run(|| -> Result<()> {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/ports")).and_then(Map::from_map_data)?;
        let mut ports: HashMap<_, PortKey, u32> = map.try_into()?;
        let pods = (0..=1).flat_map(|pod| (0..=u16::MAX).map(move |port| (Addr::v4([10, 99, 0, pod]), port)));
        let full = |(address, port)| {
            ports.insert(&PortKey::exempt(address, port, 6), &port_flags::EXEMPT, 0).is_err()
        };
        let before_full = pods.into_iter().position(full).context("the map has room for more")?;
        ensure!(before_full < MAX_PORTS as usize, "the map was full only after {before_full} entries");
        Ok(())
    })?;
    let port = "port: 9100, protocol: tcp, hostNetwork: true }\n";
    let line = format!("      - {{ address: \"{}\", {port}", cluster.b.address(Family::V4));
    let file = cluster.cluster_file();
    ensure!(file.contains(&line), "{file}");
    agent.rewrite_cluster_file(&file.replace(&line, &format!("{line}{}", line.replace("9100", "9101"))))?;
    says(&agent, "  NF20  1 host-network ports do not fit and pass")
}

/// Another program deletes a backend. After each step of a comparison the agent rests some 600 times as long as the step took.
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

/// For an observed node no port is exempt, and `status` has the number of ports that would be.
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

/// The bpf call of the thread that compares the maps fails.
#[cfg(target_arch = "x86_64")]
#[test]
fn maps_that_could_not_be_compared() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // The agent tries again this long after a failure.
    let agent = cluster.agent_with(&["--compare-every", "5s"])?;
    nodefence_tests::traced::refuse(agent.proc()?.pid(), "tables", &[libc::SYS_bpf])?;
    let line = "  NF17  the maps could not be compared: ";
    has(&agent, line, |found| found.starts_with(line) && found.contains("os error 38"))
}
