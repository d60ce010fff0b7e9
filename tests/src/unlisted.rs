//! Connections that conntrack does not list. The agent does not challenge their clients, so only the cut resets them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nodefence::conntrack::{Conntrack, Family as Half, Flow};

use crate::{Cluster, Conn, Family, Netns, Place, client::wait_until, topology::Service};

/// The time limit for waits without a promised time.
const LIMIT: Duration = Duration::from_secs(10);

/// Opens a connection from the pod on node A straight to the pod on node B. Without a Service, its packets go the same way without a conntrack entry.
///
/// # Errors
/// Fails if there is no such connection.
pub fn to_b(cluster: &Cluster, family: Family) -> Result<Conn> {
    let to = cluster.b.endpoint(Service::Web, family);
    let conn =
        Conn::connect(cluster.at(Place::Pod), to, LIMIT).with_context(|| format!("connect to {to}"))?;
    // The connection has sent nothing yet and sends nothing by itself, so that no packet makes another entry.
    let port = conn.stream.local_addr()?.port();
    let unlisted = || delete_entries(&cluster.a.ns, family, port).is_ok_and(|entries| entries == 0);
    wait_until("conntrack does not list the connection", LIMIT, unlisted)?;
    Ok(conn)
}

/// Deletes the conntrack entries of TCP packets from this port. Returns how many there were.
fn delete_entries(ns: &Netns, family: Family, port: u16) -> Result<usize> {
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
