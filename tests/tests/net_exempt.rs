//! Exemptions: the last endpoints of a Service are not cut until another endpoint comes.

use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::report::{Request, UnflagReport};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Family, Node, Options, Outcome, Place, Proc, bin,
    checks::{Case, SOON, reset_by_now},
    client::{Conn, UdpConn, try_new},
    promises::{FOLLOWED, FREED},
    topology::Service,
    watch::{wait_within, within},
};

/// The cluster file with Services. `web` has endpoints on these nodes, `host` on B only, and `dns` on B and C.
fn file(cluster: &Cluster, web: &[&str]) -> String {
    cluster.services_file_with(|service, node| {
        let there = match service {
            Service::Web => web.contains(&node.name),
            Service::Dns => true,
            Service::Host => node.name == "node-b",
        };
        there.then_some("")
    })
}

/// Gives the agent another cluster file, and waits until `is` is true, which must be in the promised time.
fn follows(agent: &Agent, file: &str, what: &str, is: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    agent.rewrite_cluster_file(file)?;
    wait_within(what, FOLLOWED, begun, is).map(drop).with_context(|| agent.log())
}

/// Whether a new connection passes from a pod of node A to B's server itself.
fn passes(cluster: &Cluster, service: Service, family: Family) -> bool {
    try_new(&cluster.a.pod, cluster.b.endpoint(service, family), Duration::from_secs(1)).0
        == Outcome::Answered
}

fn datagram_passes(cluster: &Cluster) -> bool {
    let to = cluster.b.endpoint(Service::Dns, Family::V4);
    UdpConn::connect(&cluster.a.pod, to, Duration::from_secs(1))
        .is_ok_and(|conn| conn.request() == Outcome::Answered)
}

#[test]
fn the_last_endpoints_are_exempt_until_another_comes() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let alone = file(&cluster, &["node-b"]);
    let agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &alone)?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut open = case.to_b(Service::Web)?;
    let mut host = case.to_b(Service::Host)?;

    agent.flag("node-b")?;
    for _ in 0..10 {
        ensure!(
            open.request() == Outcome::Answered && host.request() == Outcome::Answered,
            "an exempt flow was cut"
        );
    }
    for family in [Family::V4, Family::V6] {
        ensure!(
            passes(&cluster, Service::Web, family),
            "a new connection to an exempt port was cut, {family:?}"
        );
        ensure!(
            passes(&cluster, Service::Host, family),
            "a new connection to an exempt port of the node's address was cut, {family:?}"
        );
    }
    ensure!(agent.counter(Reason::Exempt)? >= 20, "not each packet is counted as exempt");
    ensure!(agent.counter(Reason::Reset)? == 0);
    ensure!(!datagram_passes(&cluster), "the port of a Service with another endpoint passes");

    let told = agent.status()?;
    ensure!(told["exempt"] == 4 && told["flagged"][0]["exempt"] == 4, "{told}");
    let row = told["exempt_examples"].as_array().and_then(|rows| {
        rows.iter().find(|row| row["address"] == cluster.b.pod_address(Family::V4).to_string())
    });
    let row = row.with_context(|| format!("no row of the pod in {told}"))?;
    ensure!(row["service"] == "default/web" && row["port"] == 8080 && row["node"] == "node-b", "{row}");
    let text = agent.expect(&["status", "-o", "wide"])?;
    let line =
        "10.244.2.2:8080/tcp on node-b: all that port 80 of default/web may use here is on flagged nodes";
    ensure!(text.contains(line), "{text}");
    ensure!(agent.expect(&["nodes"])?.contains("refuse, 4 ports exempt"));

    let cut = || !passes(&cluster, Service::Web, Family::V4);
    follows(&agent, &file(&cluster, &["node-b", "node-c"]), "the cut of what was exempt", cut)?;
    reset_by_now(&mut open)?;
    ensure!(!passes(&cluster, Service::Web, Family::V6));
    ensure!(host.request() == Outcome::Answered, "the last endpoint of the other Service was cut");
    ensure!(agent.status()?["exempt"] == 2, "{}", agent.status()?);

    let exempt = || passes(&cluster, Service::Web, Family::V4);
    follows(&agent, &alone, "exempt again", exempt)?;
    ensure!(agent.status()?["exempt"] == 4);
    agent.unflag("node-b")?;
    ensure!(agent.status()?["exempt"] == 0);
    Ok(())
}

/// Clients of a headless Service get the pods' addresses from DNS and connect to these.
#[test]
fn the_last_endpoint_of_a_headless_service_is_exempt() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let on = |nodes: &[&Node]| {
        let endpoint = |node: &Node, family| {
            format!("      - {{ address: '{}', node: {} }}\n", node.pod_address(family), node.name)
        };
        let both = |node: &&Node| [Family::V4, Family::V6].map(|family| endpoint(node, family)).concat();
        let endpoints: String = nodes.iter().map(both).collect();
        let head =
            "  - name: default/peers\n    clusterIPs: [None]\n    ports: [{ port: 8080 }]\n    endpoints:\n";
        file(&cluster, &["node-b", "node-c"]) + head + &endpoints
    };
    let agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &on(&[&cluster.b]))?;
    let peer = cluster.b.endpoint(Service::Web, Family::V4);
    let mut open = Conn::connect(&cluster.a.pod, peer, SOON)?;
    ensure!(open.request() == Outcome::Answered);
    agent.flag("node-b")?;
    for family in [Family::V4, Family::V6] {
        ensure!(passes(&cluster, Service::Web, family), "the last endpoint is cut, {family:?}");
    }
    ensure!(open.request() == Outcome::Answered, "a flow to the last endpoint is cut");
    ensure!(!datagram_passes(&cluster), "a port of a Service with another endpoint passes");
    let text = agent.expect(&["status", "-o", "wide"])?;
    let line =
        "10.244.2.2:8080/tcp on node-b: all that port 8080 of default/peers may use here is on flagged nodes";
    ensure!(text.contains(line), "{text}");

    let cut = || !passes(&cluster, Service::Web, Family::V4);
    follows(&agent, &on(&[&cluster.b, &cluster.c]), "the cut where it has another", cut)?;
    reset_by_now(&mut open)?;
    ensure!(!passes(&cluster, Service::Web, Family::V6));
    // Only the endpoints of `host` on B are still last ones.
    ensure!(agent.status()?["exempt"] == 2, "{}", agent.status()?);
    Ok(())
}

/// For an observed node no exemption is in the maps. `status` has the number of ports that would be exempt.
#[test]
fn what_would_be_exempt_of_an_observed_node_is_told() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let options = ["--mode", "observe"];
    let agent =
        Agent::start_with(&cluster.a.ns, "node-a", &["eth0"], &file(&cluster, &["node-b"]), &options)?;
    let line = "Would exempt    4 more ports, were what is observed enforced";
    ensure!(
        agent.status()?["would_exempt"] == 0
            && !agent.expect(&["status", "-o", "wide"])?.contains("Would exempt")
    );

    agent.flag("node-b")?;
    let told = agent.status()?;
    ensure!(told["would_exempt"] == 4 && told["exempt"] == 0, "{told}");
    let text = agent.expect(&["status", "-o", "wide"])?;
    ensure!(text.contains(line), "{text}");
    ensure!(agent.counter(Reason::Exempt)? == 0, "an observed node has an exemption in the maps");

    agent.unflag("node-b")?;
    ensure!(agent.status()?["would_exempt"] == 0, "{}", agent.status()?);
    Ok(())
}

/// The Service `other` with one TCP port, and with endpoints on B and C.
fn other(cluster: &Cluster, port: u16) -> String {
    let mut text = format!(
        "  - name: default/other\n    clusterIPs: [10.96.0.78, 'fd00:96::78']\n    ports: [{{ port: 90, targetPort: {port} }}]\n    endpoints:\n"
    );
    for node in [&cluster.b, &cluster.c] {
        for family in [Family::V4, Family::V6] {
            text += &format!("      - {{ address: '{}', node: {} }}\n", node.pod_address(family), node.name);
        }
    }
    text
}

/// The last endpoint of a Service sends requests before it answers: to a pod of another node, to a DNS server, and to the API server at a node's address. The
/// answers go to ports that no Service names, and pass. Ports of other Services at the same address are cut all the same.
#[test]
fn a_last_endpoint_gets_the_answers_to_what_it_asks() -> Result<()> {
    const NAMED: u16 = 8085;
    const NOT_NAMED: u16 = 8086;
    let mut cluster = Cluster::new(Options::default())?;
    cluster.serve_on_a()?;
    let mut command = Command::new(bin("nodefence-peer")?);
    command.arg("node-b").args([NAMED, NOT_NAMED].map(|port| format!("tcp={port}")));
    let _more = Proc::spawn_ready(&cluster.b.pod, command)?;
    let file = file(&cluster, &["node-b"]) + &other(&cluster, NAMED);
    let agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &file)?;
    for family in [Family::V4, Family::V6] {
        let limit = Duration::from_secs(2);
        let of_b = |port| SocketAddr::from((cluster.b.pod_address(family), port));
        let [pod, api] = [Service::Web, Service::Host].map(|service| cluster.a.endpoint(service, family));
        let mut asks = Conn::connect(&cluster.b.pod, pod, limit)?;
        let mut not_named = Conn::connect(&cluster.a.pod, of_b(NOT_NAMED), limit)?;
        let mut named = Conn::connect(&cluster.a.pod, of_b(NAMED), limit)?;
        ensure!(not_named.request() == Outcome::Answered && named.request() == Outcome::Answered);

        agent.flag("node-b")?;
        let cut = [Reason::Refused, Reason::Reset, Reason::Unreachable].map(|reason| agent.counter(reason));
        let cut: Vec<u64> = cut.into_iter().collect::<Result<_>>()?;
        for (what, to) in [("a pod", pod), ("the API", api)] {
            let (outcome, _) = try_new(&cluster.b.pod, to, limit);
            ensure!(
                outcome == Outcome::Answered,
                "a last endpoint's request to {what}, {family:?}: {outcome:?}"
            );
        }
        let dns = UdpConn::connect(&cluster.b.pod, cluster.a.endpoint(Service::Dns, family), limit)?;
        ensure!(
            dns.request() == Outcome::Answered,
            "a last endpoint got no answer of a DNS server, {family:?}"
        );
        for _ in 0..10 {
            ensure!(
                asks.request() == Outcome::Answered,
                "a connection that a last endpoint had open was cut, {family:?}"
            );
            ensure!(
                not_named.request() == Outcome::Answered,
                "a port that no Service names was cut, {family:?}"
            );
        }
        let now = [Reason::Refused, Reason::Unreachable].map(|reason| agent.counter(reason));
        let now: Vec<u64> = now.into_iter().collect::<Result<_>>()?;
        ensure!(now == [cut[0], cut[2]], "some packets were refused: {cut:?}, {now:?}");

        Conn::refused_at_once(&cluster.a.pod, of_b(NAMED), limit)
            .context("a port of a Service with another endpoint was not refused")?;
        ensure!(agent.counter(Reason::Refused)? > cut[0], "the port was refused, and not by the cut");
        let outcome = named.wait_end(SOON);
        ensure!(outcome == Outcome::Reset, "an idle client of another Service: {outcome:?}");
        // Clients of exempt ports were not challenged.
        ensure!(asks.request() == Outcome::Answered && not_named.request() == Outcome::Answered);
        agent.unflag("node-b")?;
    }
    Ok(())
}

/// The order of two flags makes no difference. Once one flag is taken back, the exemptions of the other node are removed.
#[test]
fn a_second_flag_keeps_what_the_first_one_cut() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let both = file(&cluster, &["node-b", "node-c"]);
    let agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &both)?;
    agent.flag("node-b")?;
    ensure!(!passes(&cluster, Service::Web, Family::V4));
    agent.expect(&["flag", "node-c", "--force"])?;
    ensure!(
        passes(&cluster, Service::Web, Family::V4),
        "the last endpoints of a Service are cut on both nodes"
    );
    ensure!(datagram_passes(&cluster));
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut idle = case.to_b(Service::Web)?;
    let unflagged = Instant::now();
    agent.ask::<UnflagReport>(&Request::Unflag { node: "node-c".to_owned() })?;
    ensure!(!passes(&cluster, Service::Web, Family::V4), "node B's endpoint is exempt after node C's unflag");
    let outcome = idle.wait_end(SOON);
    ensure!(outcome == Outcome::Reset, "an idle client of an exempt port: {outcome:?}");
    within("unflag to the reset of an idle client of an exempt port", FREED, unflagged).map(drop)
}

/// An agent that starts while a flag holds adopts the exemptions in the maps, so they hold without a gap.
#[test]
fn a_restart_does_not_cut_what_is_exempt() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &file(&cluster, &["node-b"]))?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut open = case.to_b(Service::Web)?;
    agent.flag("node-b")?;
    agent.restart(&["--take-over"])?;
    ensure!(open.request() == Outcome::Answered, "an exempt flow was cut at the restart");
    ensure!(agent.counter(Reason::Reset)? == 0);
    // The agent removes an exemption that is not needed any more, although its predecessor wrote it.
    let cut = || !passes(&cluster, Service::Web, Family::V4);
    follows(&agent, &file(&cluster, &["node-b", "node-c"]), "the cut of what another agent exempted", cut)?;
    reset_by_now(&mut open)
}

/// For a Service with the policy Local kube-proxy only picks local endpoints. So these endpoints of the own node are exempt, and `status` reports them.
#[test]
fn local_endpoints_of_a_local_policy_are_exempt() -> Result<()> {
    let mut cluster = Cluster::new(Options::default())?;
    cluster.serve_on_a()?;
    let file = |policy: &str| {
        let endpoint = |node: &Node| {
            format!("      - {{ address: {}, node: {} }}\n", node.pod_address(Family::V4), node.name)
        };
        let endpoints = [&cluster.a, &cluster.c].map(endpoint).concat();
        cluster.services_file()
            + &format!(
                "  - name: default/local\n    clusterIPs: [10.96.0.77]\n    ports: [{{ port: 80, targetPort: 8080 }}]\n    \
                 internalTrafficPolicy: {policy}\n    endpoints:\n{endpoints}"
            )
    };
    let agent = Agent::start_with(&cluster.a.ns, "node-a", &[], &file("Local"), &["--interface", "auto"])?;
    agent.expect(&["flag", "node-a", "--force"])?;
    let of_a = (cluster.a.pod_address(Family::V4), 8080).into();
    let outcome = || try_new(&cluster.c.ns, of_a, Duration::from_secs(1)).0;
    ensure!(outcome() == Outcome::Answered, "the only local endpoint was cut");
    let text = agent.expect(&["status", "-o", "wide"])?;
    let line =
        "10.244.1.2:8080/tcp on node-a: all local endpoints of port 80 of default/local are on flagged nodes";
    ensure!(text.contains(line), "{text}");

    let cut = || outcome() == Outcome::Refused;
    follows(&agent, &file("Cluster"), "the cut where others may be used", cut)?;
    ensure!(agent.status()?["exempt"] == 0, "{}", agent.status()?);
    // A process of the host, such as the kubelet, still reaches the pods of the flagged own node, as `flag` says.
    let passed = agent.counter(Reason::OwnSocket)?;
    let from_host = try_new(&cluster.a.ns, of_a, Duration::from_secs(1)).0;
    ensure!(from_host == Outcome::Answered, "{from_host:?}");
    ensure!(agent.counter(Reason::OwnSocket)? > passed, "{}", agent.expect(&["counters"])?);
    Ok(())
}
