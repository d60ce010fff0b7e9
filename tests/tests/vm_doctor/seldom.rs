//! Lines of `status` that few nodes have.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Family, Options, Place,
    client::{UdpConn, wait_until},
    topology::Service,
};

use super::common::Kernel;

/// For what is not promised.
const LIMIT: Duration = Duration::from_secs(60);

/// What it says to people has this line.
fn says(agent: &Agent, line: &str) -> Result<()> {
    let there = || agent.expect(&["status"]).is_ok_and(|text| text.lines().any(|found| found == line));
    wait_until(line, LIMIT, there).map(drop).with_context(|| agent.expect(&["status"]).unwrap_or_default())
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
    says(&agent, &format!("Let go          node-b: {deleted}"))
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
    agent.expect(&["flag", "node-b", "--reason", "disk blocked"])?;
    let file = cluster.cluster_file();
    agent.rewrite_cluster_file(&file.replace("name: node-b", "name: node-z"))?;
    says(&agent, "Flagged         node-b (not in the cluster file): flagged until unflagged: disk blocked")?;
    let lines = agent.expect(&["status"])?;
    ensure!(!lines.contains("Flagged         none"), "{lines}");
    Ok(())
}
