//! Stale conntrack entries in the audit.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Cluster, Conn, Family, Place,
    audit::{Audit, BOTH, outcomes, repair, wait_faults},
    client::wait_until,
    topology::Service,
};

use super::common::{
    LIMIT, agent, cluster, count_to_b, dns_clients, dns_to_b, entries, nothing_for_a_while, others, wait_seen,
};

/// The cluster file without node B's endpoint of the DNS Service.
fn without_b(cluster: &Cluster) -> String {
    cluster.with_own_backends(
        &cluster.services_file_with(|service, node| {
            (service != Service::Dns || node.name != "node-b").then_some("")
        }),
    )
}

#[test]
fn a_clean_node_has_nothing_to_tell() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    let _clients = dns_clients(&cluster, 2)?;
    let web = cluster.service(Service::Web, Place::Outside, Family::V4);
    let _conns = [Conn::connect(&cluster.client, web, LIMIT)?, Conn::connect(&cluster.client, web, LIMIT)?];
    nothing_for_a_while(&agent)?;
    // The audit says that it does not look at the kinds of IPVS.
    let audit = Audit::of(&agent)?;
    let why = audit.not_looked_at("missing-service").context("no reason")?;
    ensure!(why.contains("does not forward by IPVS: nftables"), "{why}");
    ensure!(audit.not_looked_at("stale-udp").is_none());
    let table = agent.expect(&["audit"])?;
    ensure!(
        table.contains("0 faults, 0 not faults yet, 0 draining; a difference is a fault after 2s"),
        "{table}"
    );
    ensure!(table.contains("not looked at: stale-destination, missing-destination"), "{table}");
    // A flag makes no fault either, since the agent deletes the stale flows.
    agent.expect(&["flag", "node-b", "--wait"])?;
    nothing_for_a_while(&agent)?;
    agent.unflag("node-b")?;
    nothing_for_a_while(&agent)
}

#[test]
fn a_udp_flow_of_another_zone_is_no_fault() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    agent.rewrite_cluster_file(&without_b(&cluster))?;
    let at = cluster.service(Service::Dns, Place::Outside, Family::V4);
    let b = cluster.b.pod_address(Family::V4);
    let port = Service::Dns.ports().1;
    let make = |zone: u16| {
        cluster.a.ns.exec(&format!(
            "conntrack -I -p udp -s 198.51.100.9 -d {} --sport 4000 --dport {} -r {b} -q 198.51.100.9 \
             --reply-port-src {port} --reply-port-dst 4000 --timeout 600 --zone {zone}",
            at.ip(),
            at.port()
        ))
    };
    make(7)?;
    nothing_for_a_while(&agent)?;
    // The same flow in our zone is a fault.
    make(0)?;
    let fault = format!("stale-udp {}", dns_to_b(&cluster, Family::V4));
    let audit = wait_faults(&agent, &[&fault])?;
    let row = audit.row(&fault).context("no row")?;
    ensure!(row["count"] == 1, "{row}");
    let theirs =
        || Ok::<_, anyhow::Error>(entries(&cluster, b)?.into_iter().filter(|flow| flow.is_in(7)).count());
    ensure!(theirs()? == 1);
    ensure!(repair(&agent, &["--kind", "stale-udp"])? == outcomes([("stale-udp fixed", 1)]));
    ensure!(theirs()? == 1, "the entry of another zone was deleted");
    nothing_for_a_while(&agent)
}

#[test]
fn a_udp_flow_to_a_backend_that_left_is_found_and_deleted() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    let _clients = dns_clients(&cluster, 3)?;
    ensure!(count_to_b(&cluster)? >= 6);
    agent.rewrite_cluster_file(&without_b(&cluster))?;
    let faults = BOTH.map(|family| format!("stale-udp {}", dns_to_b(&cluster, family)));
    // They are no faults at once, since kube-proxy needs time too.
    let young = || Audit::of(&agent).is_ok_and(|audit| audit.in_state("new") == faults);
    wait_until("the differences are seen, and are no faults yet", LIMIT, young)
        .with_context(|| agent.log())?;
    let audit = wait_faults(&agent, &faults.each_ref().map(String::as_str))?;
    let row = audit.row(&faults[0]).context("no row")?;
    ensure!(row["service"] == "default/dns" && row["count"].as_u64() >= Some(3), "{row}");
    ensure!(row["age_seconds"].as_u64() >= Some(2), "{row}");
    ensure!(row["detail"] == "goes to what is no endpoint of the Service that serves", "{row}");
    let table = agent.cli(&["audit"])?;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    ensure!(table.contains("stale-udp -> nodefence repair --kind stale-udp"), "{table}");

    let before = count_to_b(&cluster)?;
    let theirs = others(&cluster)?;
    let other_kinds =
        ["--kind", "flagged-flow,stray-weight", "--kind", "extra-service", "--kind", "stale-destination"];
    ensure!(repair(&agent, &other_kinds)? == outcomes([]));
    ensure!(
        repair(&agent, &["--kind", "stale-udp", "--dry-run"])? == outcomes([("stale-udp would_fix", before)])
    );
    ensure!(count_to_b(&cluster)? == before, "a dry run deleted entries");
    ensure!(repair(&agent, &["--kind", "stale-udp"])? == outcomes([("stale-udp fixed", before)]));
    ensure!(count_to_b(&cluster)? == 0);
    ensure!(others(&cluster)? == theirs, "entries of other backends changed");
    nothing_for_a_while(&agent)
}

#[test]
fn where_it_is_configured_the_agent_deletes_by_itself() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &["--repair", "stale-udp,flagged-flow"])?;
    let _clients = dns_clients(&cluster, 2)?;
    let theirs = others(&cluster)?;
    agent.rewrite_cluster_file(&without_b(&cluster))?;
    wait_until("no flow to B is left", LIMIT, || count_to_b(&cluster).is_ok_and(|count| count == 0))
        .with_context(|| agent.log())?;
    ensure!(others(&cluster)? == theirs, "entries of other backends changed");
    ensure!(Audit::of(&agent)?.report["repairs"] == serde_json::json!(["stale-udp", "flagged-flow"]));
    nothing_for_a_while(&agent)
}

#[test]
fn observe_mode_and_proxy_none_find_and_change_nothing() -> Result<()> {
    for extra in
        [&["--mode", "observe", "--repair", "stale-udp"][..], &["--proxy", "none", "--repair", "stale-udp"]]
    {
        let cluster = cluster()?;
        let agent = agent(&cluster, extra)?;
        let _clients = dns_clients(&cluster, 2)?;
        agent.rewrite_cluster_file(&without_b(&cluster))?;
        let faults = BOTH.map(|family| format!("stale-udp {}", dns_to_b(&cluster, family)));
        wait_seen(&agent, &faults)?;
        wait_faults(&agent, &faults.each_ref().map(String::as_str))?;
        let before = count_to_b(&cluster)?;
        ensure!(
            repair(&agent, &["--kind", "stale-udp"])? == outcomes([("stale-udp skipped", before)]),
            "{extra:?}"
        );
        std::thread::sleep(Duration::from_secs(3));
        ensure!(count_to_b(&cluster)? == before, "{extra:?}");
    }
    Ok(())
}

/// With `--proxy none` the agent does not delete stale flows to a flagged node. The audit reports them, and `repair` leaves them.
#[test]
fn flows_to_a_flagged_node_are_found() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &["--proxy", "none"])?;
    let _clients = dns_clients(&cluster, 2)?;
    agent.flag("node-b")?;
    let faults = BOTH.map(|family| format!("flagged-flow {}", dns_to_b(&cluster, family)));
    let audit = wait_faults(&agent, &faults.each_ref().map(String::as_str))?;
    let row = audit.row(&faults[1]).context("no row")?;
    ensure!(
        row["detail"] == "goes to node node-b, which is flagged" && row["service"] == "default/dns",
        "{row}"
    );
    let before = count_to_b(&cluster)?;
    ensure!(repair(&agent, &["--kind", "flagged-flow"])? == outcomes([("flagged-flow skipped", before)]));
    ensure!(count_to_b(&cluster)? == before);
    agent.unflag("node-b")?;
    wait_faults(&agent, &[]).map(drop)
}

#[test]
fn a_tcp_entry_to_a_flagged_node_is_deleted_where_that_does_no_harm() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    agent.expect(&["flag", "node-b", "--wait"])?;
    let b = cluster.b.pod_address(Family::V4);
    let c = cluster.c.pod_address(Family::V4);
    for (backend, port) in [(b, 40_001), (b, 40_002), (c, 40_003)] {
        cluster.a.ns.exec(&format!(
            "conntrack -I -p tcp --state ESTABLISHED -t 600 -s 192.0.2.2 -d 10.96.0.10 --sport {port} --dport 80 -r {backend} -q 192.0.2.2 \
             --reply-port-src 8080 --reply-port-dst {port} -u SEEN_REPLY,ASSURED"
        ))?;
    }
    let fault = "flagged-flow flow TCP 10.96.0.10:80 -> 10.244.2.2:8080";
    let audit = wait_faults(&agent, &[fault])?;
    ensure!(audit.row(fault).is_some_and(|row| row["count"] == 2 && row["service"] == "default/web"));
    let ours = |from| {
        entries(&cluster, from).map(|flows| flows.iter().filter(|flow| flow.orig.protocol == 6).count())
    };
    // With 0 packets without an entry are INVALID and dropped, so a deletion would do harm.
    cluster.a.ns.sysctl("netfilter/nf_conntrack_tcp_loose", "0")?;
    ensure!(repair(&agent, &["--kind", "flagged-flow"])? == outcomes([("flagged-flow skipped", 2)]));
    ensure!(ours(b)? == 2);
    cluster.a.ns.sysctl("netfilter/nf_conntrack_tcp_loose", "1")?;
    ensure!(repair(&agent, &["--kind", "flagged-flow"])? == outcomes([("flagged-flow fixed", 2)]));
    ensure!(ours(b)? == 0 && ours(c)? == 1);
    agent.rewrite_cluster_file(&cluster.with_own_backends(&cluster.services_file()))?;
    nothing_for_a_while(&agent)
}
