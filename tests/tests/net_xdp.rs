//! Packets that arrive addressed straight to a backend on another node (direct-to-pod balancers, a node that routes): XDP cuts them
//! before the stack sees them.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Outcome,
    bare::pass_all_xdp,
    capture::{Capture, Frame},
    checks::{SOON, reset_at_next_packet, sums_hold},
    client::try_new,
    topology::Service,
};

fn direct(mode: &str) -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // A veth device takes what its peer's XDP sends back only where it has an XDP program too (`veth_xdp_flush` in
    // drivers/net/veth.c, Linux 6.18): ours, which knows no backend there and passes everything.
    let _passes_all = (mode == "native").then(|| pass_all_xdp(&cluster.client, "eth0")).transpose()?;
    let agent =
        Agent::start_with(&cluster.a.ns, "node-a", &["out0"], &cluster.cluster_file(), &["--xdp", mode])?;
    let status: serde_json::Value = serde_json::from_str(&agent.expect(&["status", "-o", "json"])?)?;
    let xdp = status["interfaces"][0]["xdp"].to_string();
    ensure!(xdp.contains(mode), "XDP is not attached ({mode}): {xdp}");
    for family in [Family::V4, Family::V6] {
        let port = Service::Web.ports().1;
        let (b, c): (SocketAddr, SocketAddr) =
            ((cluster.b.pod_address(family), port).into(), (cluster.c.pod_address(family), port).into());
        let mut kept = Conn::connect(&cluster.client, b, SOON)?;
        let mut other = Conn::connect(&cluster.client, c, SOON)?;
        ensure!(kept.who()? == "node-b" && other.who()? == "node-c");
        let capture = Capture::start(&cluster.client, "eth0")?;
        let before = (agent.counter(Reason::Reset)?, agent.counter(Reason::Refused)?);
        agent.flag("node-b")?;
        reset_at_next_packet(&mut kept)?;
        let (outcome, _) = try_new(&cluster.client, b, SOON);
        ensure!(outcome == Outcome::Refused, "{mode}, {family:?}: new connection {outcome:?}");
        // No TC program sees these packets at an egress: the answers came back over the wire by XDP_TX, each with its sums.
        let after = (agent.counter(Reason::Reset)?, agent.counter(Reason::Refused)?);
        ensure!(after.0 > before.0 && after.1 > before.1, "{mode}, {family:?}: {before:?}, then {after:?}");
        let received: Vec<Frame> = capture.finish().into_iter().filter(|frame| !frame.outgoing).collect();
        sums_hold(&received, b.ip())?;
        other.echo(&nodefence_tests::client::pattern(100_000))?;
        ensure!(try_new(&cluster.client, c, SOON).0 == Outcome::Answered);
        agent.unflag("node-b")?;
        ensure!(try_new(&cluster.client, b, SOON).0 == Outcome::Answered, "{mode}: cut after the flag");
    }
    Ok(())
}

#[test]
fn generic() -> Result<()> {
    direct("generic")
}

#[test]
fn native() -> Result<()> {
    direct("native")
}
