//! Checks what `status` says of packets of the node's own sockets that meet the cut. Such packets came in by no device, so rescue sends copies of them through
//! a raw socket. Whether the copies are balanced anew depends on the kernel and on kube-proxy's mode. The agent observes that.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{
    Beside, Mode,
    clients::{LIMIT, Wait},
};
use crate::{Conn, Family, Node, Place, audit::BOTH, client::UdpConn, topology::Service};

/// The state while no packet of an own socket has met the cut.
pub(super) const NOT_TRIED: &str = "not_tried";
/// The state when packets of own sockets are balanced anew. That is so on every tested kernel, in every mode, over TCP and UDP. Otherwise `status` names the IP
/// version and the protocol (`net_rescue` has such a case).
pub(super) const BALANCED: &str = "balanced";

/// The number of connections or queries of each IP version. At least one must meet the hung endpoint, and each does with a chance of one half.
const CLIENTS: usize = 16;

/// Checks that `status` says exactly this of own sockets.
///
/// # Errors
/// Fails if `status` says something else.
pub(super) fn says(beside: &Beside, wanted: &str) -> Result<()> {
    let row = &beside.status()?["rescue"];
    ensure!(row["own"]["state"] == wanted, "`{wanted}` was expected of own sockets: {row}");
    Ok(())
}

/// Makes a new client in the host network. Returns the name of the node that answered its first packet.
fn ask(beside: &Beside, service: Service, family: Family) -> Result<String> {
    let ns = beside.cluster.at(Place::Node);
    let to = beside.cluster.service(service, Place::Node, family);
    if service == Service::Dns {
        return Ok(UdpConn::connect(ns, to, LIMIT)?.who()?);
    }
    let attempt = Conn::attempt(ns, to, LIMIT);
    attempt.at_first_syn()?;
    Ok(attempt.conn?.who()?)
}

/// The number of rescued packets.
fn rescued(beside: &Beside) -> Result<u64> {
    beside.status()?["rescue"]["rescued"].as_u64().context("how many packets were rescued")
}

/// Checks that the live node answers each new client in the host network without a retransmission. Packets of at least one client of each IP version must meet
/// the cut, and `status` must say that such packets are balanced anew. `hung` must be frozen and flagged, and no other client may run.
///
/// # Errors
/// The error names the failed check.
pub(super) fn is_balanced(beside: &Beside, service: Service, hung: &Node, live: &Node) -> Result<()> {
    let mode = beside.proxy.mode;
    for family in BOTH {
        let mut met = 0;
        let mut longest = Wait::default();
        for client in 0..CLIENTS {
            if mode == Mode::Ipvs {
                undrain(beside, service, family, hung)?;
            }
            let before = rescued(beside)?;
            let begun = Instant::now();
            let asked = ask(beside, service, family);
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

/// Sets the weight of a drained destination to 1, since IPVS sends no new flow to a drained one. The weight holds until the agent drains the destination again.
fn undrain(beside: &Beside, service: Service, family: Family, hung: &Node) -> Result<()> {
    let to = beside.cluster.service(service, Place::Node, family);
    let real = hung.endpoint(service, family);
    let protocol = if service == Service::Dns { 'u' } else { 't' };
    let verb = |verb| format!("ipvsadm -{verb} -{protocol} {to} -r {real} -m -w 1");
    let ns = &beside.cluster.a.ns;
    // The destination may be missing for a moment: the agent deletes it, and then adds it with weight 0.
    ns.exec(&verb('e')).or_else(|_| ns.exec(&verb('a'))).or_else(|_| ns.exec(&verb('e'))).map(drop)
}
