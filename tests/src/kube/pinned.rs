//! What kube-proxy pins to a flagged node is let go, in each of its modes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Beside, Mode};
use crate::{Cluster, Conn, Family, Node, Place, checks::SOON, client::UdpConn, topology::Service};

/// Where kube-proxy picks at random, the flagged node's endpoint is picked again and again, and let go again each second.
const MOVED_WITHIN: Duration = Duration::from_secs(60);
/// New connections that show where a client sticks to.
const CONNECTIONS: usize = 10;

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

/// Whether a client that kube-proxy keeps on one endpoint (`sessionAffinity: ClientIP`) moves to the other one, and stays there, once that endpoint's node is flagged.
///
/// # Errors
/// Where it does not.
pub fn affinity_moves(mode: Mode) -> Result<()> {
    let beside = Beside::new(mode, true, &[])?;
    let cluster = &beside.cluster;
    ensure!(beside.status()?["proxy"]["mode"] == mode.to_string(), "{}", beside.status()?["proxy"]);
    for service in Service::ALL {
        let hung = answers(cluster, service)?;
        sticks_to(cluster, service, &hung)?;
        let (hung, live): (&Node, &Node) =
            if hung == cluster.b.name { (&cluster.b, &cluster.c) } else { (&cluster.c, &cluster.b) };
        hung.freeze()?;
        beside.agent.flag(hung.name)?;
        let (flagged, mut tries) = (Instant::now(), 1);
        while !answers(cluster, service).is_ok_and(|name| name == live.name) {
            let late = || format!("{:?}\n{}", beside.status(), beside.agent.log());
            ensure!(
                flagged.elapsed() < MOVED_WITHIN,
                "{service:?}: {tries} tries, no answer from {}\n{}",
                live.name,
                late()
            );
            tries += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("{mode}, {service:?}: connection {tries} answered {:?} after the flag", flagged.elapsed());
        sticks_to(cluster, service, live.name).context("after the flag")?;
        beside.agent.unflag(hung.name)?;
        hung.thaw()?;
    }
    Ok(())
}
