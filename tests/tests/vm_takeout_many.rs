//! A node is taken out of IPVS that has as much on it as in a large cluster. Runs in VMs (`cargo xtask vm-test`), and in a file of its own: before
//! Linux 7.1 all namespaces share one table of connections, so that other tests would walk through this one's.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::{
    conntrack::{Conntrack, Family as Half},
    flags::monotonic_ns,
};
use nodefence_tests::{
    Agent, Cluster, Netns, Options, Proxy, client::wait_until, emulated, ipvs::saved, watch,
};
use rustix::process::setpriority_process;
use serde_json::Value;

/// Generous: an emulated guest stands still for seconds where its host is busy.
const LIMIT: Duration = Duration::from_secs(240);

const SERVICES: usize = 1_000;
const NODE_PORTS: usize = 200;
/// Endpoints of each service on each of the two nodes.
const EACH: usize = 4;
/// Pods of each node that they share.
const PODS: usize = 250;
/// Each sends to every cluster IP and node port.
const CLIENTS: usize = 42;
const FLOWS: usize = CLIENTS * (SERVICES + NODE_PORTS);
/// What is promised on real processors.
const PROMISED: Duration = Duration::from_secs(3);
/// What an emulated machine may add: it took 2.4 s where the host had nothing else to do, and takes some times as long with a guest beside it, or more than a
/// minute on a busy host.
const EMULATION: Duration = Duration::from_secs(90);

/// The pod of an endpoint, and its port: no two endpoints of one service are the same.
fn endpoint(node: u8, service: usize, at: usize) -> Result<SocketAddr> {
    let number = (service * EACH + at) % PODS;
    let port = 7_000 + (service * EACH + at) / PODS;
    Ok((IpAddr::from([10, 244, node, u8::try_from(number)? + 3]), u16::try_from(port)?).into())
}

fn cluster_ip(service: usize) -> Result<SocketAddr> {
    Ok((IpAddr::from([10, 97, u8::try_from(service / 250)?, u8::try_from(service % 250)? + 1]), 53).into())
}

/// Where a service is reached: some by a port of the node's own address as well.
fn servers(service: usize) -> Result<Vec<SocketAddr>> {
    let mut servers = vec![cluster_ip(service)?];
    if service < NODE_PORTS {
        servers.push((IpAddr::from([10, 2, 0, 11]), u16::try_from(31_000 + service)?).into());
    }
    Ok(servers)
}

/// The Services of the cluster file.
fn services() -> Result<String> {
    let mut text = String::new();
    for service in 0..SERVICES {
        let at = cluster_ip(service)?;
        let node_port = servers(service)?.get(1).map(|at| format!("nodePort: {}, ", at.port()));
        writeln!(
            text,
            "  - name: many/service-{service}
    clusterIPs: [{}]
    ports: [{{ name: main, port: {}, targetPort: 7000, {}protocol: udp }}]
    endpoints:",
            at.ip(),
            at.port(),
            node_port.unwrap_or_default()
        )?;
        for (node, name) in [(2, "node-b"), (3, "node-c")] {
            for at in 0..EACH {
                let endpoint = endpoint(node, service, at)?;
                let (address, port) = (endpoint.ip(), endpoint.port());
                writeln!(text, "      - {{ address: {address}, node: {name}, ports: {{ main: {port} }} }}")?;
            }
        }
    }
    Ok(text)
}

fn rules() -> Result<String> {
    let mut text = String::new();
    for service in 0..SERVICES {
        for server in servers(service)? {
            writeln!(text, "-A -u {server} -s rr")?;
            for node in [2, 3] {
                for at in 0..EACH {
                    writeln!(text, "-a -u {server} -r {} -m -w 1", endpoint(node, service, at)?)?;
                }
            }
        }
    }
    Ok(text)
}

/// IPVS connections to pods of a node. With precedence, as the agent has: a reading takes half a second where it is emulated, and several with the agent at work
/// on the same processor.
fn connections(ns: &Netns, node: u8) -> Result<usize> {
    let text = ns.run(|| {
        setpriority_process(None, -20)?;
        let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs_conn");
        setpriority_process(None, 0)?;
        text
    })?;
    let destination = format!(" 0AF4{node:02X}");
    // Protocol, client, its port, service, its port, destination.
    let is = |line: &&str| line.get(31..).is_some_and(|rest| rest.starts_with(&destination));
    Ok(text.lines().filter(is).count())
}

/// Conntrack entries whose answers come from pods of a node.
fn entries(ns: &Netns, node: u8) -> Result<usize> {
    ns.run(move || {
        let mut count = 0;
        let dump = Conntrack::open()?.dump(Half::V4, |flow| {
            let from: Option<[u8; 4]> = match IpAddr::from(flow.reply.src) {
                IpAddr::V4(v4) => Some(v4.octets()),
                IpAddr::V6(_) => None,
            };
            count += usize::from(from.is_some_and(|o| o[..3] == [10, 244, node]));
            false
        })?;
        ensure!(!dump.incomplete, "conntrack changes too fast");
        Ok(count)
    })
}

/// All conntrack entries that there are.
fn tracked(ns: &Netns) -> Result<usize> {
    let text = ns.run(|| std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"))?;
    Ok(text.trim().parse()?)
}

/// One datagram for each flow, from the node itself.
fn send(ns: &Netns) -> Result<()> {
    let targets = (0..SERVICES).map(servers).collect::<Result<Vec<_>>>()?.concat();
    ns.run(move || {
        // All open to the end: a port that is free again may be given to the next one, whose flows would be no new ones.
        let mut sockets = Vec::new();
        for _ in 0..CLIENTS {
            let socket = UdpSocket::bind(("10.2.0.11", 0))?;
            for target in &targets {
                socket.send_to(b"x", target)?;
            }
            sockets.push(socket);
        }
        Ok(())
    })
}

/// What `status` says of node B in IPVS.
fn row(agent: &Agent) -> Result<Value> {
    Ok(agent.status()?["ipvs"]["nodes"]["node-b"].clone())
}

#[test]
fn a_thousand_services() -> Result<()> {
    let cluster = Cluster::new(Options { proxy: Proxy::Ipvs, ..Options::default() })?;
    let ns = &cluster.a.ns;
    // As kube-proxy sets it.
    ns.sysctl("ipv4/vs/expire_nodest_conn", "1")?;
    ns.ip("route add local 10.97.0.0/16 dev lo")?;
    // Nobody answers: such entries live for 30 s, and sending that much takes longer where it is emulated.
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "600")?;
    // The pods are addresses alone: what is sent to them ends at their nodes.
    for node in [&cluster.b, &cluster.c] {
        node.ns.nft(
            "table inet pods {
                chain in { type filter hook prerouting priority -400; udp dport 7000-7099 drop; }
            }",
        )?;
    }
    ns.feed("ipvsadm -R", &rules()?)?;
    let file = cluster.services_file() + &services()?;
    let before = saved(ns)?;
    let agent = Agent::start_with(ns, "node-a", &cluster.interfaces(), &file, &["--proxy", "ipvs"])?;
    send(ns)?;
    let (mine, theirs) = (connections(ns, 2)?, connections(ns, 3)?);
    ensure!(mine + theirs == FLOWS && mine > FLOWS / 3, "{mine} and {theirs} flows");
    ensure!(entries(ns, 2)? >= mine);

    let tracked = tracked(ns)?;
    let flagged = Instant::now();
    let report: Value = serde_json::from_str(&agent.expect(&["flag", "node-b", "-o", "json"])?)?;
    let told = flagged.elapsed();
    // The start of a program takes a good part of a second where it is emulated.
    let received = report["received_ns"].as_u64().context("when it was asked")?;
    let since_asked = || Duration::from_nanos(monotonic_ns().saturating_sub(received));
    // The kernel tells at no cost how many it has, where reading the tables holds up those who change them. Which they are is looked at afterwards.
    let fewer = || self::tracked(ns).is_ok_and(|now| now + mine <= tracked);
    let gone = wait_until("conntrack has fewer entries", LIMIT, fewer);
    gone.with_context(|| agent.log())?;
    let of_conntrack = since_asked();
    let mut looked = of_conntrack;
    let gone = wait_until("its flows are gone", LIMIT, || {
        looked = since_asked();
        connections(ns, 2).is_ok_and(|left| left == 0)
    });
    gone.with_context(|| format!("{:?}\n{}", connections(ns, 2), agent.log()))?;
    let of_both = since_asked();
    let left = entries(ns, 2)?;
    ensure!(left == 0, "{left} conntrack entries of node B");
    wait_until("all is out", LIMIT, || row(&agent).is_ok_and(|row| row["waiting"] == 0))
        .with_context(|| agent.log())?;
    let row = row(&agent)?;
    println!(
        "{} pairs, {mine} of {FLOWS} flows, since the agent was asked: conntrack without them after {of_conntrack:?}, IPVS too after {of_both:?} at most (its \
         table was begun to be read {looked:?} after), tombstones after {:?}; the CLI back after {told:?}",
        row["taken"],
        since_asked()
    );
    // 4 in each of 1,200, and the cluster's own.
    ensure!(row["taken"].as_u64() >= Some(((SERVICES + NODE_PORTS) * EACH) as u64), "{row}");
    let bound = if emulated() { PROMISED + EMULATION } else { PROMISED };
    watch::held("flows gone from conntrack and IPVS", bound, flagged, of_both)?;
    let now = connections(ns, 3)?;
    ensure!(now == theirs, "{theirs} flows to node C became {now}");

    let unflagged = Instant::now();
    agent.unflag("node-b")?;
    wait_until("nothing is ours", LIMIT, || self::row(&agent).is_ok_and(|row| row.is_null()))?;
    println!("put back {:?} after", unflagged.elapsed());
    ensure!(saved(ns)? == before, "the table is not as it was");
    Ok(())
}
