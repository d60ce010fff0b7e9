//! Endpoints that end while their connections go on.

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Cluster, Conn, Family, Place,
    audit::{Audit, outcomes, repair, wait_faults},
    topology::Service,
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

const PAIR: &str = "TCP 10.96.0.10:80 -> 10.244.2.2:8080";

/// A cluster file in which the web Service's endpoint on node B ends.
fn leaving(cluster: &Cluster) -> String {
    let file = cluster.services_file_with(|service, node| match (service, node.name) {
        (Service::Web, "node-b") => Some(", ready: false, serving: true, terminating: true"),
        _ => Some(""),
    });
    cluster.with_own_backends(&file)
}

fn weigh(cluster: &Cluster, weight: u32) -> Result<()> {
    let [v4, v6] = [Family::V4, Family::V6].map(|family| cluster.b.pod_address(family));
    for (server, real) in [
        ("10.96.0.10:80", format!("{v4}:8080")),
        ("192.0.2.1:30080", format!("{v4}:8080")),
        ("[fd00:96::10]:80", format!("[{v6}]:8080")),
        ("[2001:db8::1]:30080", format!("[{v6}]:8080")),
    ] {
        let server = server.replace("fd00:96::10", &Service::Web.cluster_ip(Family::V6).to_string());
        cluster.a.ns.exec(&format!("ipvsadm -e -t {server} -r {real} -m -w {weight}"))?;
    }
    Ok(())
}

/// kube-proxy sets such a destination's weight to 0 and waits for its connections, which is draining and no fault. A destination that still has weight is a
/// fault, and `repair` drains it in the same way.
#[test]
fn what_drains_is_no_fault() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let mut conn = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    agent.rewrite_cluster_file(&leaving(&cluster))?;
    let fault = format!("stale-destination {PAIR}");
    // All four virtual servers have this endpoint. Only one of them has a connection, and must be drained. The others may be deleted.
    let others =
        ["TCP 192.0.2.1:30080 -> 10.244.2.2:8080".to_owned()].map(|pair| format!("stale-destination {pair}"));
    let b6 = cluster.b.pod_address(Family::V6);
    let v6 = [format!("{}", Service::Web.cluster_ip(Family::V6)), "2001:db8::1".to_owned()];
    let v6 = [format!("TCP [{}]:80", v6[0]), format!("TCP [{}]:30080", v6[1])]
        .map(|server| format!("stale-destination {server} -> [{b6}]:8080"));
    let all: Vec<&str> = [&fault, &others[0], &v6[0], &v6[1]].map(String::as_str).into();
    let audit = wait_faults(&agent, &all)?;
    let row = audit.row(&fault).context("no row")?;
    ensure!(row["detail"] == "is an endpoint that is not to be used; weight 1, 1 connections", "{row}");

    // Here the test sets weight 0, as kube-proxy does.
    weigh(&cluster, 0)?;
    let draining = || Audit::of(&agent).is_ok_and(|audit| audit.in_state("draining") == [fault.clone()]);
    nodefence_tests::client::wait_until("the audit shows the destination as draining", LIMIT, draining)
        .with_context(|| agent.log())?;
    weigh(&cluster, 1)?;
    wait_faults(&agent, &all)?;
    // `repair` sets weight 0 if there are connections, and deletes the others.
    let expected = outcomes([("stale-destination fixed", 4)]);
    let done = repair(&agent, &["--kind", "stale-destination"])?;
    ensure!(done == expected, "{done:?}\n{}", agent.log());
    let table = cluster.a.ns.exec("ipvsadm -Sn")?;
    ensure!(table.contains("-a -t 10.96.0.10:80 -r 10.244.2.2:8080 -m -w 0"), "{table}");
    ensure!(table.matches("10.244.2.2:8080").count() == 1, "{table}");
    conn.echo(b"goes on")?;
    let audit = wait_faults(&agent, &[])?;
    ensure!(audit.in_state("draining") == [fault.clone()], "{:#}", audit.report["differences"]);
    // `repair` leaves draining destinations alone.
    ensure!(repair(&agent, &["--kind", "stale-destination"])? == outcomes([]));
    conn.echo(b"goes on")?;

    // The endpoint is ready again. Now its weight 0 has no cause, and the deleted destinations are missing.
    agent.rewrite_cluster_file(&cluster.with_own_backends(&cluster.services_file()))?;
    let stray = format!("stray-weight {PAIR}");
    let missing: Vec<String> =
        all[1..].iter().map(|fault| fault.replace("stale-destination", "missing-destination")).collect();
    let faults: Vec<&str> = std::iter::once(&stray).chain(&missing).map(String::as_str).collect();
    wait_faults(&agent, &faults)?;
    // The destination has a connection, so kube-proxy may be draining it.
    ensure!(repair(&agent, &["--kind", "stray-weight"])? == outcomes([("stray-weight skipped", 1)]));
    ensure!(
        repair(&agent, &["--kind", "missing-destination"])? == outcomes([("missing-destination fixed", 3)])
    );
    weigh(&cluster, 1)?;
    conn.echo(b"goes on")?;
    nothing_for_a_while(&agent)
}
