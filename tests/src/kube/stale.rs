//! Checks that the agent deletes stale flows and affinity of a flagged node, in each of kube-proxy's modes.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{
    Beside, Mode, Setup,
    clients::{LIMIT, Wait},
    hang::rescues,
};
use crate::{
    Conn, Family, Node, Place, audit::BOTH, client::UdpConn, emulated, promises::RESTORED, topology::Service,
    watch::wait_within,
};

/// The number of new connections that show to which node a client sticks.
const CONNECTIONS: usize = 10;

/// How often the client of each Service and IP version is moved. A flag empties kube-proxy's affinity once. After that kube-proxy picks the hung node with a
/// chance of one half, and affinity keeps the client there unless rescue deletes it. On an emulated processor each move takes seconds.
fn rounds() -> usize {
    if emulated() { 1 } else { 2 }
}

/// A client that affinity keeps at one endpoint.
#[derive(Clone, Copy)]
struct Client<'a> {
    beside: &'a Beside,
    service: Service,
    family: Family,
}

impl Client<'_> {
    /// Makes a new connection, without a retransmission. Returns the name of the node that answered, and how long that took.
    fn answer(&self) -> Result<(String, Wait)> {
        let cluster = &self.beside.cluster;
        let to = cluster.service(self.service, Place::Outside, self.family);
        let begun = Instant::now();
        let name = if self.service == Service::Dns {
            UdpConn::connect(&cluster.client, to, LIMIT)?.who()?
        } else {
            Conn::answered_at_once(&cluster.client, to, LIMIT)?
        };
        Ok((name, Wait::since(begun)))
    }

    /// Checks that this node answers each new connection.
    fn sticks_to(&self, node: &str) -> Result<()> {
        for connection in 0..CONNECTIONS {
            let (name, wait) = self.answer().with_context(|| format!("connection {connection}"))?;
            wait.bounded(format!("connection {connection}"))?;
            ensure!(name == node, "connection {connection} is answered by {name}, others by {node}");
        }
        Ok(())
    }

    /// Flags the node to which the client sticks, and later unflags it. After the flag the other node must answer the next connection and those after it.
    /// Returns how long the first of them took.
    fn moves(&self, hung: &Node, live: &Node) -> Result<Wait> {
        let agent = &self.beside.agent;
        hung.freeze()?;
        agent.flag(hung.name)?;
        let (name, wait) = self.answer().context("the first connection after the flag")?;
        ensure!(name == live.name, "the first connection after the flag was answered by {name}");
        self.sticks_to(live.name).context("after the flag")?;
        hung.thaw()?;
        let unflagged = Instant::now();
        agent.unflag(hung.name)?;
        // A drained destination with connections is restored only once the source has confirmed it.
        self.beside.confirm()?;
        // In IPVS mode the node's destinations are restored a moment later. Until then only the other node gets connections.
        let restored = || {
            let status = self.beside.status();
            let nodes = status.ok().and_then(|status| status["ipvs"]["nodes"].as_object().cloned());
            nodes.is_some_and(|nodes| !nodes.contains_key(hung.name))
        };
        wait_within("what was drained is restored", RESTORED, unflagged, restored)?;
        Ok(wait)
    }
}

/// Checks clients of Services with `sessionAffinity: ClientIP`. Once the node of a client's endpoint is flagged, the client's next connection goes to the other
/// endpoint, and so do those after it.
///
/// # Errors
/// The error names the client that did not move.
pub fn affinity_moves(mode: Mode) -> Result<()> {
    let beside = Beside::new(mode, Setup { affinity: true, ..Setup::default() })?;
    let cluster = &beside.cluster;
    ensure!(beside.status()?["proxy"]["mode"] == mode.to_string(), "{}", beside.status()?["proxy"]);
    rescues(&beside)?;
    for (service, family) in Service::ALL.into_iter().flat_map(|service| BOTH.map(|family| (service, family)))
    {
        let client = Client { beside: &beside, service, family };
        let (first, _) = client.answer()?;
        client.sticks_to(&first)?;
        let mut hung = &cluster.b;
        let mut live = &cluster.c;
        if first != cluster.b.name {
            std::mem::swap(&mut hung, &mut live);
        }
        let mut longest = Wait::default();
        for round in 0..rounds() {
            let wait = client.moves(hung, live).with_context(|| {
                let counters = beside.agent.expect(&["counters"]).unwrap_or_default();
                format!(
                    "{mode}, {service:?}, {family:?}, round {round}\n{counters}\n{:?}\n{}",
                    beside.status(),
                    beside.agent.log()
                )
            })?;
            longest = longest.max(wait);
            std::mem::swap(&mut hung, &mut live);
        }
        longest.held("first answer after a flag")?;
        println!("{mode}, {service:?}, {family:?}: answered by the other node within {longest:?}");
    }
    Ok(())
}
