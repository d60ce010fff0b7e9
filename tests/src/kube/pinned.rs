//! What kube-proxy pins to a flagged node is let go, in each of its modes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Beside, Mode, hang::rescues};
use crate::{
    Cluster, Conn, Family, Node, Place,
    checks::SOON,
    client::{UdpConn, wait_until},
    emulated,
    topology::Service,
};

/// New connections that show where a client sticks to.
const CONNECTIONS: usize = 10;

/// How often each Service's client is moved. At a flag kube-proxy's affinity is emptied once; after that it picks the hung node in one of two
/// cases, and keeps the client there unless rescue has it forget that. An emulated processor takes seconds for each.
fn rounds() -> usize {
    if emulated() { 2 } else { 4 }
}

/// How many new connections it may take. Where the processor is emulated, one may come while it stands still for longer than a packet is waited for.
fn most_tries() -> usize {
    if emulated() { 3 } else { 1 }
}

/// Who answers a new connection.
fn answers(cluster: &Cluster, service: Service) -> Result<String> {
    let to = cluster.service(service, Place::Outside, Family::V4);
    Ok(match service {
        Service::Dns => UdpConn::connect(&cluster.client, to, SOON)?.who()?,
        Service::Web | Service::Host => Conn::connect(&cluster.client, to, SOON)?.who()?,
    })
}

fn sticks_to(cluster: &Cluster, service: Service, node: &str) -> Result<()> {
    for connection in 0..CONNECTIONS {
        let name = answers(cluster, service)?;
        ensure!(name == node, "{service:?}: connection {connection} is answered by {name}, others by {node}");
    }
    Ok(())
}

/// Flags the node to which the client sticks: its next connection is answered by the other node, and so are those after it. Says how long it took.
fn moves(beside: &Beside, service: Service, hung: &Node, live: &Node) -> Result<Duration> {
    let cluster = &beside.cluster;
    hung.freeze()?;
    beside.agent.flag(hung.name)?;
    let (flagged, mut tries) = (Instant::now(), 1);
    loop {
        match answers(cluster, service) {
            Ok(name) if name == live.name => break,
            other => ensure!(tries < most_tries(), "try {tries}, {other:?} in place of {}", live.name),
        }
        tries += 1;
    }
    let took = flagged.elapsed();
    sticks_to(cluster, service, live.name).context("after the flag")?;
    hung.thaw()?;
    beside.agent.unflag(hung.name)?;
    // In IPVS mode it gets its weights back a moment later; until then the other node has nobody beside it.
    let back = || beside.status().is_ok_and(|status| status["ipvs"]["nodes"].get(hung.name).is_none());
    wait_until("what was taken out is put back", SOON, back)?;
    Ok(took)
}

/// Whether a client that kube-proxy keeps on one endpoint (`sessionAffinity: ClientIP`) moves to the other one with its next connection, and stays
/// there, once that endpoint's node is flagged.
///
/// # Errors
/// Where it does not.
pub fn affinity_moves(mode: Mode) -> Result<()> {
    let beside = Beside::new(mode, true, &[])?;
    let cluster = &beside.cluster;
    ensure!(beside.status()?["proxy"]["mode"] == mode.to_string(), "{}", beside.status()?["proxy"]);
    rescues(&beside)?;
    for service in Service::ALL {
        let first = answers(cluster, service)?;
        sticks_to(cluster, service, &first)?;
        let (mut hung, mut live): (&Node, &Node) =
            if first == cluster.b.name { (&cluster.b, &cluster.c) } else { (&cluster.c, &cluster.b) };
        let mut longest = Duration::ZERO;
        for round in 0..rounds() {
            let took = moves(&beside, service, hung, live).with_context(|| {
                let counters = beside.agent.expect(&["counters"]).unwrap_or_default();
                format!(
                    "{mode}, {service:?}, round {round}\n{counters}\n{:?}\n{}",
                    beside.status(),
                    beside.agent.log()
                )
            })?;
            longest = longest.max(took);
            std::mem::swap(&mut hung, &mut live);
        }
        println!("{mode}, {service:?}: answered by the other node {longest:?} after the flag at most");
    }
    Ok(())
}
