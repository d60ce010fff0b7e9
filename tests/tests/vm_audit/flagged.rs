//! The audit beside the drain: changes that the drain made are no faults, and the audit finds what the drain could not do.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Conn, Family, Place,
    audit::{Audit, outcomes, repair, wait_faults},
    client::{UdpConn, wait_until},
    ipvs::saved,
    promises::RESTORED,
    topology::Service,
    watch::wait_within,
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

#[test]
fn what_the_drain_owns_is_no_fault() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let agent = agent(&cluster, &[])?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let _conn = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    let before = saved(ns)?;
    agent.expect(&["flag", "node-b", "--wait"])?;
    let out =
        || saved(ns).is_ok_and(|table| table.iter().filter(|line| line.ends_with("-w 0")).count() >= 12);
    wait_until("node B is drained", LIMIT, out).with_context(|| agent.log())?;
    nothing_for_a_while(&agent)?;
    ensure!(
        repair(&agent, &["--kind", "stray-weight,missing-destination,stale-destination"])? == outcomes([])
    );
    // With both nodes flagged the services have no other node, and all their destinations are restored.
    let flagged = Instant::now();
    agent.expect(&["flag", "node-c", "--force"])?;
    wait_within("all is restored", RESTORED, flagged, || saved(ns).is_ok_and(|table| table == before))
        .with_context(|| agent.log())?;
    nothing_for_a_while(&agent)?;
    agent.unflag("node-c")?;
    let unflagged = Instant::now();
    agent.unflag("node-b")?;
    wait_within("all is as it was", RESTORED, unflagged, || saved(ns).is_ok_and(|table| table == before))
        .with_context(|| agent.log())?;
    nothing_for_a_while(&agent)
}

/// With `expire_nodest_conn` 0 the kernel keeps the connections of a deleted destination. `status` says so, and the audit finds the connections that are left.
#[test]
fn what_the_drain_cannot_do_is_found() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    ns.sysctl("ipv4/vs/expire_nodest_conn", "0")?;
    let agent = agent(&cluster, &[])?;
    let dns = cluster.service(Service::Dns, Place::Pod, Family::V4);
    let client = UdpConn::connect_to(cluster.at(Place::Pod), dns, "node-b", LIMIT)?;
    agent.flag("node-b")?;
    let note = || agent.status().map(|status| status["ipvs"]["note"].clone());
    let said =
        |note: serde_json::Value| note.as_str().is_some_and(|note| note.contains("expire_nodest_conn is 0"));
    wait_until("status names expire_nodest_conn", LIMIT, || note().is_ok_and(said))?;
    let stale = [
        "flagged-destination UDP 10.96.0.10:53 -> 10.244.2.2:5300",
        "flagged-flow flow UDP 10.96.0.10:53 -> 10.244.2.2:5300",
    ];
    let audit = wait_faults(&agent, &stale)?;
    let row = audit.row(stale[0]).context("no row")?;
    ensure!(row["detail"] == "on a flagged node; weight 0, 1 connections, 0 templates", "{row}");
    // Both belong to the drain, so `repair` leaves them.
    let left = outcomes([("flagged-destination skipped", 1), ("flagged-flow skipped", 1)]);
    ensure!(repair(&agent, &["--kind", "flagged-destination,flagged-flow"])? == left);
    // The drain goes on once it can.
    ns.sysctl("ipv4/vs/expire_nodest_conn", "1")?;
    wait_faults(&agent, &[])?;
    ensure!(client.who()? == "node-c");
    nothing_for_a_while(&agent)?;
    ensure!(Audit::of(&agent)?.code == 0);
    Ok(())
}
