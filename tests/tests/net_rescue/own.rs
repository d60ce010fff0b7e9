//! On some kernels packets of a raw socket are not balanced. There connections of the node's own sockets go elsewhere at their next retransmission, and
//! `status` says so.
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Cluster, Conn, Family, Options, Place, tcp_info, topology::Service};
use serde_json::json;

use crate::common::{own_counter, rescuing};

/// A SYN is repeated after 1, 3 and 7 s.
const LIMIT: Duration = Duration::from_secs(20);
/// One more than the number of repeated SYNs after which the agent reports it.
const CLIENTS: usize = 4;

/// Rules that do not track, and so do not translate, a SYN within 0.7 s after another SYN of its flow. The agent's SYN comes within that time, and the client's
/// own repetition later. Every second pick is node B.
const UNBALANCED: &str = "
table ip unbalanced {
    set seen { type ipv4_addr . inet_service; flags dynamic,timeout; timeout 700ms; size 1024; }
    chain output {
        type filter hook output priority raw;
        ip daddr 10.96.0.10 tcp flags & (syn | ack) == syn jump again
    }
    chain again {
        ip saddr . tcp sport @seen notrack return
        add @seen { ip saddr . tcp sport }
    }
}
flush chain ip kube-proxy service-web
add rule ip kube-proxy service-web numgen inc mod 2 vmap { 0 : goto endpoint-web-0, 1 : goto endpoint-web-1 }
";

#[test]
fn what_is_not_balanced_goes_elsewhere_when_it_is_repeated() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // Packets that are not translated go to the default gateway, which does not exist.
    cluster.a.ns.ip("neigh replace 10.2.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent")?;
    cluster.a.ns.nft(UNBALANCED)?;
    let agent = rescuing(&cluster, &[])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let to = cluster.service(Service::Web, Place::Node, Family::V4);
    let own = || anyhow::Ok(agent.status()?["rescue"]["own"].clone());
    for client in 0..CLIENTS {
        let believed = client == CLIENTS - 1;
        let wanted = match believed {
            true => json!({ "state": "repeated", "repeated": ["IPv4 TCP"] }),
            false => json!({ "state": "not_tried", "repeated": [] }),
        };
        ensure!(own()? == wanted, "client {client}: {}", own()?);
        let told = || format!("client {client}\n{}", agent.expect(&["counters"]).unwrap_or_default());
        let mut conn = Conn::connect(cluster.at(Place::Node), to, LIMIT).with_context(told)?;
        let again = tcp_info::retransmitted(&conn.stream)?;
        ensure!(conn.who()? == "node-c" && again == 1, "sent {again} times again: {}", told());
    }
    let counters = || agent.expect(&["counters"]);
    ensure!(own_counter(&agent, "rescue_repeated")? as usize == CLIENTS, "{}", counters()?);
    ensure!(own_counter(&agent, "rescued")? == 0, "{}", counters()?);
    let told = agent.expect(&["status", "-o", "wide"])?;
    ensure!(told.contains("(of own sockets: IPv4 TCP: go elsewhere when they are sent again)"), "{told}");
    agent.wait_for_log("packets of own sockets are not balanced anew")
}
