//! What `status` says of packets of the node's own sockets that meet the cut. Such packets have come in by no device, so rescue sends them once more
//! through a raw socket. Whether the copies are balanced too depends on the kernel and on kube-proxy's mode. The agent finds that out by observing.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{
    Beside, Mode,
    clients::{LIMIT, Wait},
};
use crate::{Conn, Family, Node, Place, audit::BOTH, client::UdpConn, topology::Service};

/// No own socket's packet has met the cut yet.
pub(super) const NOT_TRIED: &str = "not_tried";
/// Own sockets' packets are balanced anew on every kernel, in every mode, over TCP and UDP. Otherwise `status` names the IP version and the protocol
/// (`net_rescue` has such a case).
pub(super) const BALANCED: &str = "balanced";

/// Connections or queries of each IP version. At least one must meet the hung endpoint; each one does with a chance of one half.
const CLIENTS: usize = 16;

/// Whether `status` says exactly this of own sockets.
///
/// # Errors
/// Where it says something else.
pub(super) fn says(beside: &Beside, wanted: &str) -> Result<()> {
    let row = &beside.status()?["rescue"];
    ensure!(row["own"]["state"] == wanted, "`{wanted}` was expected of own sockets: {row}");
    Ok(())
}

/// A new client in the host network: who answered its first packet.
fn asks(beside: &Beside, service: Service, family: Family) -> Result<String> {
    let ns = beside.cluster.at(Place::Node);
    let to = beside.cluster.service(service, Place::Node, family);
    if service == Service::Dns {
        return Ok(UdpConn::connect(ns, to, LIMIT)?.who()?);
    }
    let attempt = Conn::attempt(ns, to, LIMIT);
    attempt.at_first_syn()?;
    Ok(attempt.conn?.who()?)
}

/// How many packets were rescued.
fn rescued(beside: &Beside) -> Result<u64> {
    beside.status()?["rescue"]["rescued"].as_u64().context("how many packets were rescued")
}

/// Checks that the live node answers each new client in the host network without a retransmission. Packets of at least one client of each IP version must
/// meet the cut, and `status` must say that such packets are balanced anew. `hung` is frozen and flagged, and nobody else has clients.
///
/// # Errors
/// Names the check that failed.
pub(super) fn is_balanced(beside: &Beside, service: Service, hung: &Node, live: &Node) -> Result<()> {
    let mode = beside.proxy.mode;
    for family in BOTH {
        let mut met = 0;
        let mut longest = Wait::default();
        for client in 0..CLIENTS {
            if mode == Mode::Ipvs {
                weigh(beside, service, family, hung)?;
            }
            let before = rescued(beside)?;
            let begun = Instant::now();
            let asked = asks(beside, service, family);
            longest = longest.max(Wait::since(begun));
            let again = rescued(beside)? > before;
            let what = format!("{service:?}, {family:?}, client {client} (met the cut: {again})");
            let who = asked.with_context(|| what.clone())?;
            ensure!(who == live.name, "{what}: {who}");
            met += usize::from(again);
        }
        longest.held("slowest answer to a new client in the host network")?;
        println!(
            "{mode}, {service:?}, {family:?}: {met} of {CLIENTS} clients met the cut and were balanced anew"
        );
        ensure!(met > 0, "{service:?}, {family:?}: none of {CLIENTS} clients met the cut");
    }
    says(beside, BALANCED)
}

/// IPVS sends no new flow to a drained node. This gives its destinations their weight back; it holds until the agent sees it.
fn weigh(beside: &Beside, service: Service, family: Family, hung: &Node) -> Result<()> {
    let to = beside.cluster.service(service, Place::Node, family);
    let real = hung.endpoint(service, family);
    let protocol = if service == Service::Dns { 'u' } else { 't' };
    let verb = |verb| format!("ipvsadm -{verb} -{protocol} {to} -r {real} -m -w 1");
    let ns = &beside.cluster.a.ns;
    // Between its deletion and its tombstone it is not there.
    ns.exec(&verb('e')).or_else(|_| ns.exec(&verb('a'))).or_else(|_| ns.exec(&verb('e'))).map(drop)
}
