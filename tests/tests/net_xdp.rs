//! Packets that arrive at a node with the address of a backend on another node, as from balancers that send straight to pods. XDP cuts them before the stack sees
//! them.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Outcome,
    bare::pass_all_xdp,
    capture::{Capture, Frame},
    checks::{SOON, reset_by_now, sums_hold},
    client::{pattern, try_new},
    topology::Service,
};

/// The agent on node A. In native mode XDP answers, so only the clients' device is attached. In generic mode TC egress answers, so the device that leads to the
/// backends is attached too.
fn agent(cluster: &Cluster, mode: &str) -> Result<Agent> {
    let devices: &[&str] = if mode == "native" { &["out0"] } else { &["out0", "eth0"] };
    let agent =
        Agent::start_with(&cluster.a.ns, "node-a", devices, &cluster.cluster_file(), &["--xdp", mode])?;
    let xdp = agent.status()?["interfaces"][0]["xdp"].to_string();
    ensure!(xdp.contains(mode), "XDP is not attached ({mode}): {xdp}");
    Ok(agent)
}

fn direct(mode: &str) -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // A veth device accepts frames that its peer's XDP sends back only if it has an XDP program itself (`veth_xdp_flush` in
    // drivers/net/veth.c, Linux 6.18). This one knows no backend, and passes all frames.
    let _passes_all = (mode == "native").then(|| pass_all_xdp(&cluster.client, "eth0")).transpose()?;
    let agent = agent(&cluster, mode)?;
    for family in [Family::V4, Family::V6] {
        let port = Service::Web.ports().1;
        let (b, c): (SocketAddr, SocketAddr) =
            ((cluster.b.pod_address(family), port).into(), (cluster.c.pod_address(family), port).into());
        let mut conn = Conn::connect(&cluster.client, b, SOON)?;
        let mut other = Conn::connect(&cluster.client, c, SOON)?;
        ensure!(conn.who()? == "node-b" && other.who()? == "node-c");
        let capture = Capture::start(&cluster.client, "eth0")?;
        let before = (agent.counter(Reason::Reset)?, agent.counter(Reason::Refused)?);
        agent.flag("node-b")?;
        reset_by_now(&mut conn)?;
        Conn::refused_at_once(&cluster.client, b, SOON).with_context(|| format!("{mode}, {family:?}"))?;
        let after = (agent.counter(Reason::Reset)?, agent.counter(Reason::Refused)?);
        ensure!(after.0 > before.0 && after.1 > before.1, "{mode}, {family:?}: {before:?}, then {after:?}");
        // Only answers in node B's name are checked. A connection to node C may still be ending, with checksums that are left to the device.
        let of_b = |frame: &Frame| frame.segment().is_some_and(|segment| segment.src == b.ip());
        let received: Vec<Frame> =
            capture.finish().into_iter().filter(|frame| !frame.outgoing && of_b(frame)).collect();
        if mode == "native" {
            // XDP_TX sent these answers, so no later step completes their checksums.
            sums_hold(&received, b.ip())?;
        }
        other.echo(&pattern(100_000))?;
        ensure!(try_new(&cluster.client, c, SOON).0 == Outcome::Answered);
        agent.unflag("node-b")?;
        ensure!(
            try_new(&cluster.client, b, SOON).0 == Outcome::Answered,
            "{mode}: node B is cut after the unflag"
        );
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

/// Puts a switch between the clients and node A. The switch writes out each checksum that was left to a device, which veth devices never do.
fn switch(cluster: &Cluster) -> Result<Netns> {
    let switch = Netns::new("switch")?;
    let mac = cluster.client.exec("cat /sys/class/net/eth0/address")?;
    cluster
        .client
        .ip(&format!("link set eth0 down\nlink set eth0 netns {} name in0", switch.path().display()))?;
    switch.ip(&format!(
        "link add br0 type bridge
         link add out0 type veth peer name eth0 netns {}
         link set in0 address 0e:00:00:00:01:01
         link set in0 master br0 up
         link set out0 master br0 up
         link set br0 up",
        cluster.client.path().display()
    ))?;
    cluster.client.ip(&format!(
        "link set eth0 address {}
         link set eth0 up
         addr add 192.0.2.2/24 dev eth0
         addr add 2001:db8::2/64 dev eth0 nodad
         route replace default via 192.0.2.1
         route replace default via 2001:db8::1",
        mac.trim()
    ))?;
    switch.exec("ethtool -K out0 tx off")?;
    Ok(switch)
}

/// Sends segments of several sizes, with checksums that are left to the device. The answers must arrive with valid checksums.
fn sums(mode: &str) -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let switch = switch(&cluster)?;
    let _passes_all = (mode == "native").then(|| pass_all_xdp(&switch, "in0")).transpose()?;
    let agent = agent(&cluster, mode)?;
    for family in [Family::V4, Family::V6] {
        let backend: IpAddr = cluster.b.pod_address(family);
        for len in [1, 1_000, 65_000] {
            let case = || format!("{mode}, {family:?}, {len} bytes");
            let to: SocketAddr = (backend, Service::Web.ports().1).into();
            let mut conn = Conn::connect(&cluster.client, to, SOON).with_context(case)?;
            let capture = Capture::start(&cluster.client, "eth0")?;
            agent.flag("node-b")?;
            let outcome = conn.echo(&pattern(len)).map_err(|error| Outcome::of(&error));
            ensure!(outcome == Err(Outcome::Reset), "{}: {outcome:?}", case());
            Conn::refused_at_once(&cluster.client, to, SOON).with_context(case)?;
            let received: Vec<Frame> = capture.finish().into_iter().filter(|frame| !frame.outgoing).collect();
            sums_hold(&received, backend).with_context(case)?;
            agent.unflag("node-b")?;
        }
    }
    Ok(())
}

#[test]
fn sums_hold_behind_a_switch_generic() -> Result<()> {
    sums("generic")
}

#[test]
fn sums_hold_behind_a_switch_native() -> Result<()> {
    sums("native")
}
