//! Connections that conntrack does not list. Their clients are not challenged, so only the cut resets them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nodefence::conntrack::{Conntrack, Family as Half, Flow};

use crate::{Cluster, Conn, Family, Netns, Place, client::wait_until, topology::Service};

/// For waits that nothing is promised of.
const LIMIT: Duration = Duration::from_secs(10);

/// A connection of the pod on node A to node B's own, past any Service: its packets go the same way without an entry.
///
/// # Errors
/// Where there is no such connection.
pub fn to_b(cluster: &Cluster, family: Family) -> Result<Conn> {
    let to = cluster.b.endpoint(Service::Web, family);
    let conn =
        Conn::connect(cluster.at(Place::Pod), to, LIMIT).with_context(|| format!("connect to {to}"))?;
    // The connection has sent nothing yet, and sends nothing by itself: no packet makes another entry.
    let port = conn.stream.local_addr()?.port();
    let forgotten = || forget(&cluster.a.ns, family, port).is_ok_and(|entries| entries == 0);
    wait_until("conntrack does not list the connection", LIMIT, forgotten)?;
    Ok(conn)
}

/// Deletes the conntrack entries of packets from this port; gives how many there were.
fn forget(ns: &Netns, family: Family, port: u16) -> Result<usize> {
    let half = match family {
        Family::V4 => Half::V4,
        Family::V6 => Half::V6,
    };
    ns.run(move || {
        let mut conntrack = Conntrack::open_all_zones()?;
        let is_its = |flow: &Flow| flow.orig.protocol == 6 && flow.orig.src_port == port;
        let flows = conntrack.dump(half, is_its)?.flows;
        conntrack.delete(&flows)?;
        Ok(flows.len())
    })
}
