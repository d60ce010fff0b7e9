//! What `status` says of packets of the node's own sockets that meet the cut. They have come in by no device, so they are sent once more through a raw
//! socket; whether these are balanced too depends on the kernel and on kube-proxy's mode. The agent finds it out by looking.

use std::{io, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Beside, Mode};
use crate::{Conn, Family, Node, Place, client::UdpConn, tcp_info, topology::Service};

/// No own socket's packet has met the cut yet.
pub(super) const NOT_TRIED: &str = "not tried yet";
/// Wanted on every kernel, in every mode, over TCP and UDP. Where it were not so, `status` would name the IP version and the protocol
/// (`net_rescue` has such a case).
pub(super) const BALANCED: &str = "balanced anew";

/// Connections, or queries, of which at least one is to meet the hung endpoint: each does in one of two cases.
const TRIES: usize = 40;
const LIMIT: Duration = Duration::from_secs(8);

/// Whether `status` says just this of own sockets.
///
/// # Errors
/// Where it says something else.
pub(super) fn says(beside: &Beside, wanted: &str) -> Result<()> {
    let row = &beside.status()?["rescue"];
    ensure!(row["own"] == wanted, "`{wanted}` was expected of own sockets: {row}");
    Ok(())
}

/// A new client in the host network: who answered, and how often its SYN was sent again.
fn asks(beside: &Beside, service: Service) -> io::Result<(String, u32)> {
    let (ns, to) = (beside.cluster.at(Place::Node), beside.cluster.service(service, Place::Node, Family::V4));
    if service == Service::Dns {
        return Ok((UdpConn::connect(ns, to, LIMIT)?.who()?, 0));
    }
    let mut conn = Conn::connect(ns, to, LIMIT)?;
    let again = tcp_info::retransmitted(&conn.stream)?;
    Ok((conn.who()?, again))
}

/// How many packets were put in again.
fn put_in(beside: &Beside) -> Result<u64> {
    beside.status()?["rescue"]["put_in"].as_u64().context("how many packets were put in again")
}

/// Whether the packet of a new client in the host network that meets the cut is answered by the live node without being sent again by the client, and
/// `status` says that such packets are balanced anew. `hung` is frozen and flagged, and nobody else has clients.
///
/// # Errors
/// Where it is not so.
pub(super) fn is_balanced(beside: &Beside, service: Service, hung: &Node, live: &Node) -> Result<()> {
    let mode = beside.proxy.mode;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        if mode == Mode::Ipvs {
            weigh(beside, service, hung)?;
        }
        let before = put_in(beside)?;
        let asked = asks(beside, service);
        let met = put_in(beside)? > before;
        if met && asked.as_ref().is_ok_and(|(who, again)| who == live.name && *again == 0) {
            println!("{mode}, {service:?}: balanced anew after {} clients that were not", seen.len());
            return says(beside, BALANCED);
        }
        // In the other modes nothing is waited for, so none may fail.
        let other = asked.as_ref().is_ok_and(|(who, _)| who == live.name);
        ensure!(other || mode == Mode::Ipvs, "{service:?}: {asked:?}");
        seen.push((met, asked));
    }
    says(beside, BALANCED)?;
    anyhow::bail!("{service:?}: of {TRIES} clients none was balanced anew (met the cut, answer): {seen:?}")
}

/// IPVS sends no new flow to a node that is out. Somebody gives it its weight back, as long as the agent has not seen it.
fn weigh(beside: &Beside, service: Service, hung: &Node) -> Result<()> {
    let to = beside.cluster.service(service, Place::Node, Family::V4);
    let real = hung.endpoint(service, Family::V4);
    let protocol = if service == Service::Dns { 'u' } else { 't' };
    let verb = |verb| format!("ipvsadm -{verb} -{protocol} {to} -r {real} -m -w 1");
    let ns = &beside.cluster.a.ns;
    // Between its deletion and its tombstone it is not there.
    ns.exec(&verb('e')).or_else(|_| ns.exec(&verb('a'))).or_else(|_| ns.exec(&verb('e'))).map(drop)
}
