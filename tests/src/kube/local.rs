//! Checks clients of the node port of a Service with `externalTrafficPolicy: Local`, beside kube-proxy in IPVS mode. External traffic of such a Service stays
//! on the node where it enters.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{
    Beside, Mode, Setup,
    clients::{LIMIT, Wait},
    hang::{follow, recovers, rescues},
};
use crate::{
    Conn, Family, Place, audit::BOTH, checks::reset_by_now, client::wait_until, ipvs::saved,
    promises::RESTORED, topology::Service, watch::wait_within,
};

/// The number of new connections of each IP version.
const CONNECTIONS: usize = 12;

/// Checks that this node answers each new connection without a retransmission.
fn answered_by(beside: &Beside, place: Place, family: Family, node: &str) -> Result<()> {
    let cluster = &beside.cluster;
    let to = cluster.service(Service::Web, place, family);
    let mut longest = Wait::default();
    for connection in 0..CONNECTIONS {
        let begun = Instant::now();
        let who = Conn::answered_at_once(cluster.at(place), to, LIMIT)
            .with_context(|| format!("{to}, connection {connection}"))?;
        ensure!(who == node, "{to}, connection {connection}: {who}");
        longest = longest.max(Wait::since(begun));
    }
    longest.held("slowest answer to a new connection").map(drop)
}

/// Checks two cases. Without an endpoint on node A, kube-proxy in IPVS mode sends clients of the node port to endpoints of other nodes, and these clients leave
/// a flagged node. With an endpoint on node A, that is the last endpoint for clients of the node port, and they stay on it when node A is flagged. Clients of
/// the ClusterIP then go to another node.
///
/// # Errors
/// The error names the failed check.
pub fn node_port_goes_on() -> Result<()> {
    let setup = Setup { local: true, extra: &["--interface", "auto"], ..Setup::default() };
    let mut beside = Beside::new(Mode::Ipvs, setup)?;
    beside.cluster.serve_on_a()?;
    rescues(&beside)?;
    falls_back(&beside).with_context(|| format!("no endpoint here\n{}", beside.agent.log()))?;
    own_endpoint_is_exempt(&beside).with_context(|| {
        let table = saved(&beside.cluster.a.ns);
        format!("an endpoint here\n{table:#?}\n{}", beside.agent.log())
    })
}

fn falls_back(beside: &Beside) -> Result<()> {
    let cluster = &beside.cluster;
    let mut established = Vec::new();
    for family in BOTH {
        let to = cluster.service(Service::Web, Place::Outside, family);
        established.push(Conn::connect_to(&cluster.client, to, cluster.b.name, LIMIT)?);
    }
    cluster.b.freeze()?;
    beside.agent.flag(cluster.b.name)?;
    for (conn, family) in established.iter_mut().zip(BOTH) {
        reset_by_now(conn).with_context(|| format!("{family:?}: an established connection"))?;
        answered_by(beside, Place::Outside, family, cluster.c.name)?;
    }
    recovers(beside, &cluster.b)
}

fn own_endpoint_is_exempt(beside: &Beside) -> Result<()> {
    let a = &beside.cluster.a;
    let c = &beside.cluster.c;
    beside.set_endpoints(&[a, c])?;
    follow(beside, &[a, c])?;
    // Only the lines of node A's endpoint count. kube-proxy deletes other destinations, which it drains, at its check once a minute.
    let table = || -> Result<Vec<String>> {
        let addresses = BOTH.map(|family| a.endpoint(Service::Web, family).to_string());
        Ok(saved(&a.ns)?
            .into_iter()
            .filter(|line| addresses.iter().any(|address| line.contains(address)))
            .collect())
    };
    // The agent may follow the file before kube-proxy has added node A's endpoint.
    let added = || table().is_ok_and(|now| now.len() >= 4);
    wait_until("kube-proxy has added node A's endpoint", LIMIT, added)?;
    std::thread::sleep(Duration::from_secs(1));
    let before = table()?;
    for family in BOTH {
        answered_by(beside, Place::Outside, family, a.name)?;
    }
    beside.agent.expect(&["flag", a.name, "--force"])?;
    let mut row = serde_json::Value::Null;
    wait_until("node A is out where there is another node", LIMIT, || {
        row = beside.status().map(|status| status["ipvs"]["nodes"][a.name].clone()).unwrap_or_default();
        row["drained"].as_u64() > Some(0) && row["waiting"] == 0
    })
    .with_context(|| row.to_string())?;
    ensure!(row["exempt"].as_array().is_some_and(|exempt| !exempt.is_empty()), "{row}");
    for family in BOTH {
        answered_by(beside, Place::Outside, family, a.name).context("its last endpoint was cut")?;
        answered_by(beside, Place::Node, family, c.name)?;
    }
    let unflagged = Instant::now();
    beside.agent.unflag(a.name)?;
    beside.confirm()?;
    let same = || table().is_ok_and(|now| now == before);
    wait_within("the table is as it was", RESTORED, unflagged, same).map(drop)
}
