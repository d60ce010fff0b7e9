//! The whole of nodefence: the real agent on node A, a node that the real command line flags, and clients in three places.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Node, Options, Outcome, Overlay, Place, Proc, bin,
    checks::{self, Case, Fence as _, SOON},
    client::{UdpConn, wait_until},
    load::until_reset::Sending,
    promises::FOLLOWED,
    topology::Service,
    watch::{held, moment, wait_within},
};
use serde_json::{Value, json};

/// The time within which a flow that sends all the time is reset after the request to flag its node. The verdict is written at once, not with the next renewal.
const CUT: Duration = Duration::from_millis(100);
/// The limit within which the agent sees a replacement of kube-proxy. It looks for one every 5 s.
const NOTICED: Duration = Duration::from_secs(10);
/// The pause between two bytes of the flow.
const PACE: Duration = Duration::from_millis(1);

fn matrix(options: Options) -> Result<()> {
    checks::matrix(options).map(drop)
}

nodefence_tests::each_topology!(matrix);

/// With `--interface auto` the agent finds the devices by route lookups.
#[test]
fn interface_auto() -> Result<()> {
    for overlay in [Overlay::HostGateway, Overlay::Vxlan] {
        let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
        let mut agent = Agent::start(&cluster.a.ns, "node-a", &["auto"], &cluster.cluster_file())?;
        for family in [Family::V4, Family::V6] {
            Case { cluster: &cluster, place: Place::Outside, family }.cut_and_back(&mut agent, true)?;
        }
    }
    Ok(())
}

#[test]
fn a_flag_cuts_a_busy_flow_at_once() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = cluster.agent()?;
    for family in [Family::V4, Family::V6] {
        for _ in 0..5 {
            let conn = Case { cluster: &cluster, place: Place::Outside, family }.to_b(Service::Web)?;
            let busy = Sending::start(conn.stream, PACE, || Ok(()))?;
            wait_until("the busy flow sends", SOON, || busy.sent() > 20)?;
            let flagged = agent.flag_now("node-b")?;
            let reset = busy.wait(SOON)?.context("not reset at all")?;
            let took = moment(reset.at).checked_duration_since(flagged).context("reset before the flag")?;
            held("flag to the reset of a busy flow", CUT, flagged, took)?;
            busy.finish()?;
            agent.unflag("node-b")?;
        }
    }
    Ok(())
}

/// In observe mode packets are counted and not cut.
#[test]
fn observe() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--mode", "observe"])?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut conn = case.to_b(Service::Web)?;
    agent.flag("node-b")?;
    for _ in 0..20 {
        ensure!(conn.request() == Outcome::Answered, "observe mode has cut a flow");
    }
    case.to_b(Service::Web).context("observe mode has cut new flows")?;
    ensure!(agent.counter(Reason::Observed)? >= 20, "not each packet is counted as observed");
    ensure!(agent.counter(Reason::Reset)? == 0);
    Ok(())
}

/// Another product forwards in kube-proxy's place. Beside it nothing is cut, from the first packet on and as long as its device is there.
#[test]
fn beside_what_replaces_kube_proxy_nothing_is_cut() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let a = &cluster.a.ns;
    a.ip("link add cilium_host type veth peer name cilium_net")?;
    let mut agent = cluster.agent()?;
    let status = |agent: &Agent| -> Result<Value> {
        Ok(serde_json::from_str(&agent.expect(&["status", "-o", "json"])?)?)
    };
    let why = "Cilium forwards Services here (device cilium_host): nothing is cut, only counted";
    let flagged = agent.cli(&["flag", "node-b"])?;
    let warned = String::from_utf8_lossy(&flagged.stderr);
    ensure!(flagged.status.success() && warned.contains(why), "{warned}");
    let mut conn = case.to_b(Service::Web)?;
    for _ in 0..20 {
        ensure!(conn.request() == Outcome::Answered, "a flow was cut beside Cilium");
    }
    ensure!(agent.counter(Reason::Observed)? >= 20, "not each packet is counted as observed");
    ensure!(agent.counter(Reason::Reset)? == 0);
    let shown = status(&agent)?;
    let row = &shown["replacement"];
    ensure!((&shown["mode"], &row["beside"]) == (&json!("observe"), &json!("observes")), "{shown}");
    ensure!(row["product"] == "Cilium" && row["device"] == "cilium_host", "{row}");
    ensure!(
        shown["state"] == "observe" && shown["why"].as_str().is_some_and(|why| why.contains("Cilium")),
        "{shown}"
    );
    ensure!(agent.expect(&["status"])?.contains(&format!("\n  NF07  {why}")));
    agent.wait_for_log(why)?;
    let doctor = agent.cli(&["doctor"])?;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(doctor.contains(why) && doctor.contains("ip link delete cilium_host"), "{doctor}");

    a.ip("link delete cilium_host")?;
    wait_until("the flow is cut once the device is gone", NOTICED, || conn.request() == Outcome::Reset)?;
    ensure!(agent.counter(Reason::Reset)? > 0, "the flow was reset, and no RST is counted");
    let shown = status(&agent)?;
    ensure!(shown["mode"] == "enforce" && shown["replacement"].is_null(), "{shown}");
    agent.wait_for_log("nothing forwards Services in kube-proxy's place any more")?;

    // The replacement comes while a node is flagged: packets that were cut pass again.
    a.ip("link add cilium_host type veth peer name cilium_net")?;
    wait_until("new flows pass once the device is there", NOTICED, || case.to_b(Service::Web).is_ok())?;
    ensure!(agent.node("node-b")?["action"] == "observe");

    // An agent with `--force` cuts beside the replacement.
    agent.terminate()?;
    agent.restart(&["--force"])?;
    let Err(_refused) = case.to_b(Service::Web) else { anyhow::bail!("--force does not cut") };
    let row = &status(&agent)?["replacement"];
    ensure!(row["beside"] == "forced", "{row}");
    ensure!(agent.expect(&["status"])?.contains("it is cut all the same, as --force says"));
    // The next agent has no `--force`, and cuts no flow that the one before it cut.
    agent.terminate()?;
    agent.restart(&[])?;
    case.to_b(Service::Web).context("an agent without --force cuts beside Cilium")?;
    ensure!(agent.node("node-b")?["action"] == "observe");
    Ok(())
}

/// With `--answer drop` packets get no answer and do not reach the node.
#[test]
fn drop_answers_nothing() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--answer", "drop"])?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut conn = case.to_b(Service::Web)?;
    agent.flag("node-b")?;
    conn.limit(Some(Duration::from_millis(700)))?;
    ensure!(conn.request() == Outcome::TimedOut);
    ensure!(agent.counter(Reason::Dropped)? > 0 && agent.counter(Reason::Reset)? == 0);
    agent.unflag("node-b")?;
    // After the unflag TCP sends the dropped segment again.
    conn.limit(Some(Duration::from_secs(10)))?;
    let mut name = [0; 7];
    std::io::Read::read_exact(&mut conn.stream, &mut name)
        .context("the flow does not go on after the unflag")?;
    ensure!(&name == b"node-b\n");
    Ok(())
}

/// A flag on the agent's own node only cuts that node's backends.
#[test]
fn the_own_node_goes_on_to_forward() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let refused = agent.cli(&["flag", "node-a"])?;
    ensure!(!refused.status.success(), "the own node was flagged without --force");
    agent.expect(&["flag", "node-a", "--force"])?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    for name in ["node-b", "node-c"] {
        Conn::connect_to(&cluster.client, to, name, SOON)?;
    }
    Ok(())
}

/// A cluster file in which B's second address and the pod's second address are endpoints, without `hostNetwork`. `b` has the addresses that the file gives node B.
fn dual_stack(cluster: &Cluster, b: &[IpAddr]) -> String {
    let address = |node: &Node| node.address(Family::V4);
    let b = b.iter().map(|ip| format!("'{ip}'")).collect::<Vec<_>>().join(", ");
    let service = |name: &str, target: u16, on_b: IpAddr| {
        format!(
            "- name: default/{name}
  clusterIPs: ['fd00:96::{target}']
  ports: [{{ port: 80, targetPort: {target} }}]
  endpoints: [{{ address: '{on_b}', node: node-b }}, {{ address: '{}', node: node-c }}]
",
            cluster.c.pod_address(Family::V6)
        )
    };
    format!(
        "nodes:
- {{ name: node-a, address: {} }}
- {{ name: node-b, addresses: [{b}], backends: [{{ address: {} }}] }}
- {{ name: node-c, addresses: [{}, '{}'] }}
services:
{}{}",
        address(&cluster.a),
        cluster.b.pod_address(Family::V4),
        address(&cluster.c),
        cluster.c.address(Family::V6),
        service("host", 9100, cluster.b.address(Family::V6)),
        service("web", 8080, cluster.b.pod_address(Family::V6)),
    )
}

/// A cut of a node's whole address would also cut the kubelet, ssh and the outer packets of tunnels.
#[test]
fn ssh_and_tunnels_over_a_second_address_of_a_flagged_node_go_on() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let a = &cluster.a;
    let b = &cluster.b;
    let mut own = Command::new(bin("nodefence-peer")?);
    own.args(["node-b", "tcp=22", "udp=4789"]);
    let _own = Proc::spawn_ready(&b.ns, own)?;
    let [v4, v6] = [Family::V4, Family::V6].map(|family| b.address(family));
    let mut ssh = Conn::connect(&a.ns, (v6, 22).into(), SOON)?;
    let tunnel = UdpConn::connect(&a.ns, (v6, 4789).into(), SOON)?;
    let mut go_on = |what: &str| -> Result<()> {
        for _ in 0..5 {
            ensure!(ssh.request() == Outcome::Answered, "ssh is cut: {what}");
            ensure!(tunnel.request() == Outcome::Answered, "the tunnel is cut: {what}");
        }
        Conn::answered_at_once(&a.ns, (v6, 22).into(), SOON).with_context(|| format!("new ssh: {what}"))?;
        Ok(())
    };
    let refused = |to: IpAddr, port: u16| Conn::refused_at_once(&a.pod, (to, port).into(), SOON);

    let agent = Agent::start(&a.ns, "node-a", &["eth0"], &dual_stack(&cluster, &[v4]))?;
    let flagged = agent.json(&["flag", "node-b"])?;
    go_on("the node names one address")?;
    refused(b.pod_address(Family::V4), 8080)?;
    let pod = SocketAddr::from((b.pod_address(Family::V6), 8080));
    Conn::answered_at_once(&a.pod, pod, SOON).context("an endpoint that is left out does not pass")?;
    ensure!(flagged["left_out"] == 2, "{flagged}");
    let why = "it may be node-b's own address: the node names no IPv6 address";
    let row = |address: IpAddr| json!({ "node": "node-b", "address": address, "why": why });
    let cluster_row = agent.status()?["cluster"].clone();
    let rows = json!([row(v6), row(b.pod_address(Family::V6))]);
    ensure!(cluster_row["left_out_examples"] == rows && cluster_row["left_out"] == 2, "{cluster_row}");
    let text = agent.expect(&["status", "-o", "wide"])?;
    let lines = format!("Left out        2 endpoints (NF12)\n{:16}{v6} on node-b: {why}\n", "");
    ensure!(text.contains(&lines), "{text}");
    agent.wait_for_log("endpoints are left out and not cut")?;

    let begun = Instant::now();
    agent.rewrite_cluster_file(&dual_stack(&cluster, &[v4, v6]))?;
    wait_within("the pod is cut once the node names both addresses", FOLLOWED, begun, || {
        refused(pod.ip(), 8080).is_ok()
    })
    .with_context(|| agent.log())?;
    refused(v6, 9100).context("the endpoint on the node's second address is not cut")?;
    go_on("the node names both addresses")?;
    ensure!(agent.status()?["cluster"]["left_out"] == 0, "{}", agent.status()?);
    Ok(())
}
