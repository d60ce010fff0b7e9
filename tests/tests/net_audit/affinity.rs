//! Clients that Service affinity keeps at a flagged node.

use std::{io::Write as _, net::SocketAddr, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nodefence::{cluster::Protocol, proxy::Endpoint};
use nodefence_tests::{
    Cluster, Family,
    audit::{Audit, BOTH, outcomes, repair, wait_faults},
    client::wait_until,
    topology::{Node, Service},
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

/// The limit within which the agent deletes affinity, which it does each second. An emulated processor needs more time.
const EMPTIED: Duration = Duration::from_secs(5);

/// The web Service's endpoint on a node.
fn web(node: &Node, family: Family) -> Endpoint<'static> {
    let socket = SocketAddr::new(node.pod_address(family), Service::Web.ports().1);
    Endpoint { service: "default/web", port: "", protocol: Protocol::Tcp, socket }
}

fn fault(node: &Node, family: Family) -> String {
    format!("flagged-affinity affinity TCP default/web -> {}", web(node, family).socket)
}

/// Words for nftables: the family of kube-proxy's table, the type of a set's elements, and two clients.
fn words(family: Family) -> (&'static str, &'static str, [&'static str; 2]) {
    match family {
        Family::V4 => ("ip", "ipv4_addr", ["192.0.2.77", "192.0.2.78"]),
        Family::V6 => ("ip6", "ipv6_addr", ["2001:db8::77", "2001:db8::78"]),
    }
}

/// Adds the sets that kube-proxy has for the endpoints of both nodes, each with two clients.
fn plant_sets(cluster: &Cluster) -> Result<()> {
    for (family, node) in BOTH.into_iter().flat_map(|family| [(family, &cluster.b), (family, &cluster.c)]) {
        let (table, kind, [one, other]) = words(family);
        let set = web(node, family).set();
        cluster.a.ns.nft(&format!(
            "add set {table} kube-proxy {set} {{ type {kind}; flags dynamic,timeout; timeout 3h; }}
             add element {table} kube-proxy {set} {{ {one}, {other} }}"
        ))?;
    }
    Ok(())
}

fn clients_in_set(cluster: &Cluster, node: &Node, family: Family) -> Result<usize> {
    let (table, _, clients) = words(family);
    let set = cluster.a.ns.exec(&format!("nft list set {table} kube-proxy {}", web(node, family).set()))?;
    Ok(clients.iter().filter(|client| set.contains(*client)).count())
}

/// The agent deletes planted affinity to a flagged node. With `--proxy none` it only reports the affinity.
#[test]
fn a_client_in_a_set_is_deleted_or_found() -> Result<()> {
    let cluster = cluster()?;
    let of = |node: &Node| -> Result<usize> {
        BOTH.into_iter().map(|family| clients_in_set(&cluster, node, family)).sum()
    };
    {
        let agent = agent(&cluster, &[])?;
        plant_sets(&cluster)?;
        nothing_for_a_while(&agent)?;
        ensure!(of(&cluster.b)? == 4, "affinity was deleted while no node is flagged");
        agent.flag("node-b")?;
        wait_until("B's clients are deleted", EMPTIED, || of(&cluster.b).is_ok_and(|left| left == 0))?;
        nothing_for_a_while(&agent)?;
        agent.unflag("node-b")?;
    }
    plant_sets(&cluster)?;
    let agent = agent(&cluster, &["--proxy", "none"])?;
    agent.flag("node-b")?;
    let faults = BOTH.map(|family| fault(&cluster.b, family));
    let audit = wait_faults(&agent, &faults.each_ref().map(String::as_str))?;
    let row = audit.row(&faults[0]).context("no row")?;
    ensure!(row["count"] == 2 && row["service"] == "default/web", "{row}");
    ensure!(row["detail"] == "sticks to node node-b, which is flagged", "{row}");
    ensure!(repair(&agent, &["--kind", "flagged-affinity"])? == outcomes([("flagged-affinity skipped", 4)]));
    ensure!((of(&cluster.b)?, of(&cluster.c)?) == (4, 4));
    agent.unflag("node-b")?;
    wait_faults(&agent, &[]).map(drop)
}

/// Makes xt_recent's list of a node's endpoint, with two clients. The kernel makes a list for each name that a rule has.
fn plant_list(cluster: &Cluster, node: &Node) -> Result<()> {
    let list = web(node, Family::V4).list();
    cluster
        .a
        .ns
        .exec(&format!("iptables-nft -t nat -A OUTPUT -d 203.0.113.9 -m recent --name {list} --set"))?;
    let (.., clients) = words(Family::V4);
    cluster.a.ns.run(move || {
        for client in clients {
            let file = format!("/proc/thread-self/net/xt_recent/{list}");
            let mut file = std::fs::OpenOptions::new().write(true).open(file)?;
            file.write_all(format!("+{client}\n").as_bytes())?;
        }
        Ok(())
    })
}

fn clients_in_list(cluster: &Cluster, node: &Node) -> Result<usize> {
    let file = format!("/proc/thread-self/net/xt_recent/{}", web(node, Family::V4).list());
    cluster.a.ns.run(move || Ok(std::fs::read_to_string(file)?.lines().count()))
}

/// The name of a list is a hash. So the agent only empties lists of Services that have affinity by its source. If the source does not say so, the audit finds the
/// clients, and `repair` deletes them.
#[test]
fn a_client_in_a_list_that_the_agent_leaves_is_found_and_deleted() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &["--proxy", "iptables"])?;
    for node in [&cluster.b, &cluster.c] {
        plant_list(&cluster, node)?;
    }
    agent.flag("node-b")?;
    let of = |node: &Node| clients_in_list(&cluster, node);
    let fault = fault(&cluster.b, Family::V4);
    wait_faults(&agent, &[&fault])?;
    ensure!((of(&cluster.b)?, of(&cluster.c)?) == (2, 2));
    let kind = ["--kind", "flagged-affinity"];
    ensure!(repair(&agent, &["--kind", "flagged-flow,stale-udp"])? == outcomes([]));
    let planned = repair(&agent, &[&kind[..], &["--dry-run"]].concat())?;
    ensure!(planned == outcomes([("flagged-affinity would_fix", 2)]));
    ensure!(of(&cluster.b)? == 2, "a dry run deleted clients");
    ensure!(repair(&agent, &kind)? == outcomes([("flagged-affinity fixed", 2)]));
    ensure!((of(&cluster.b)?, of(&cluster.c)?) == (0, 2));
    nothing_for_a_while(&agent)?;
    // If the source says that the Service has affinity, the agent empties the list by itself.
    plant_list(&cluster, &cluster.b)?;
    let file = cluster.with_own_backends(&cluster.services_file());
    let file = file.replacen(
        "    clusterIPs:",
        "    sessionAffinity: ClientIP\n    clusterIPs:",
        Service::ALL.len(),
    );
    agent.rewrite_cluster_file(&file)?;
    wait_until("B's clients are deleted", EMPTIED, || of(&cluster.b).is_ok_and(|left| left == 0))?;
    nothing_for_a_while(&agent)
}

/// With `--repair flagged-affinity` the agent empties by itself the lists that the audit finds.
#[test]
fn where_it_is_configured_the_agent_empties_what_it_finds() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &["--proxy", "iptables", "--repair", "flagged-affinity"])?;
    plant_list(&cluster, &cluster.b)?;
    sleep(EMPTIED);
    ensure!(clients_in_list(&cluster, &cluster.b)? == 2, "affinity was deleted while no node is flagged");
    agent.flag("node-b")?;
    let gone = || clients_in_list(&cluster, &cluster.b).is_ok_and(|left| left == 0);
    wait_until("B's clients are deleted", LIMIT, gone).with_context(|| agent.log())?;
    ensure!(Audit::of(&agent)?.report["repairs"] == serde_json::json!(["flagged-affinity"]));
    nothing_for_a_while(&agent)
}
