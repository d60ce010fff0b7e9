//! The drain of a node with as many flows as in a large cluster. Runs in VMs (`cargo xtask vm-test`), and has a file of its own: before
//! Linux 7.1 all namespaces share one table of connections, so that other tests would read through the connections of this one.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, socket},
};
use nodefence::{
    conntrack::{Conntrack, Family as Half},
    flags::monotonic_ns,
};
use nodefence_tests::{
    Agent, Netns,
    client::wait_until,
    emulated,
    ipvs::{self, saved},
    load::each,
    long,
    promises::RESTORED,
    watch::{figure, held, moment, wait_within},
};
use rustix::process::setpriority_process;
use serde_json::Value;

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(180);

/// The number of endpoints that each service has on each of the two nodes.
const EACH: usize = 4;
/// The number of pods on each node. The services share them.
const PODS: usize = 250;
const FIRST_PORT: u16 = 7_000;
/// The node's own address, the source of all flows.
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 11));
/// The number of ports that the pods serve.
const PORTS: u16 = 16;
/// The promised time. It includes the challenges of idle clients.
const PROMISED: Duration = Duration::from_secs(3);

/// The size of the cluster. Half of the services are TCP.
#[derive(Clone, Copy, Debug)]
struct Size {
    services: usize,
    /// The number of services that have a node port too.
    node_ports: usize,
    /// The number of clients of each protocol. Each has a flow to every cluster IP and node port of its protocol.
    clients: u16,
}

/// 50,400 flows.
const ALL: Size = Size { services: 1_000, node_ports: 200, clients: 42 };
/// 1,920 flows to a tenth of the Services. An emulated processor needs one to two milliseconds to challenge a client, and as long to drain a destination. At
/// this size it keeps the promises for real processors. At full size, which [`long`] runs try too, it needs longer than the drain waits for clients before it
/// deletes their connections (core/src/plan/drain). So at full size the test checks the result, and only records the figures.
const EMULATED: Size = Size { services: 100, node_ports: 20, clients: 16 };

impl Size {
    /// The number of flows of each protocol.
    fn flows(self) -> usize {
        usize::from(self.clients) * self.servers() / 2
    }

    fn servers(self) -> usize {
        self.services + self.node_ports
    }

    /// The addresses of a service. Some services have a port of the node's own address as well.
    fn servers_of(self, service: usize) -> Result<Vec<SocketAddr>> {
        let mut servers = vec![cluster_ip(service)?];
        if service < self.node_ports {
            servers.push((NODE, u16::try_from(31_000 + service)?).into());
        }
        Ok(servers)
    }

    /// The addresses of the services of one protocol.
    fn targets(self, tcp: bool) -> Result<Vec<SocketAddr>> {
        let services = (0..self.services).filter(|service| is_tcp(*service) == tcp);
        Ok(services.map(|service| self.servers_of(service)).collect::<Result<Vec<_>>>()?.concat())
    }
}

fn is_tcp(service: usize) -> bool {
    service % 2 == 1
}

/// The pod's address and the port of an endpoint. No two endpoints of a service are the same.
fn endpoint(node: u8, service: usize, at: usize) -> Result<SocketAddr> {
    let number = (service * EACH + at) % PODS;
    let port = FIRST_PORT + u16::try_from((service * EACH + at) / PODS)?;
    Ok((IpAddr::from([10, 244, node, u8::try_from(number)? + 3]), port).into())
}

fn cluster_ip(service: usize) -> Result<SocketAddr> {
    Ok((IpAddr::from([10, 97, u8::try_from(service / 250)?, u8::try_from(service % 250)? + 1]), 53).into())
}

/// The Services of the cluster file.
fn services(size: Size) -> Result<String> {
    let mut text = String::new();
    for service in 0..size.services {
        let at = cluster_ip(service)?;
        let node_port = size.servers_of(service)?.get(1).map(|at| format!("nodePort: {}, ", at.port()));
        writeln!(
            text,
            "  - name: many/service-{service}
    clusterIPs: [{}]
    ports: [{{ name: main, port: {}, targetPort: 7000, {}protocol: {} }}]
    endpoints:",
            at.ip(),
            at.port(),
            node_port.unwrap_or_default(),
            if is_tcp(service) { "tcp" } else { "udp" }
        )?;
        for (node, name) in [(2, "node-b"), (3, "node-c")] {
            for at in 0..EACH {
                let endpoint = endpoint(node, service, at)?;
                let address = endpoint.ip();
                let port = endpoint.port();
                writeln!(text, "      - {{ address: {address}, node: {name}, ports: {{ main: {port} }} }}")?;
            }
        }
    }
    Ok(text)
}

fn rules(size: Size) -> Result<String> {
    let mut text = String::new();
    for service in 0..size.services {
        let flag = if is_tcp(service) { "-t" } else { "-u" };
        for server in size.servers_of(service)? {
            writeln!(text, "-A {flag} {server} -s rr")?;
            for node in [2, 3] {
                for at in 0..EACH {
                    writeln!(text, "-a {flag} {server} -r {} -m -w 1", endpoint(node, service, at)?)?;
                }
            }
        }
    }
    Ok(text)
}

/// The numbers of IPVS connections to pods of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Connections {
    udp: usize,
    /// Established TCP connections.
    tcp: usize,
    /// TCP connections in any other state.
    others: usize,
}

impl Connections {
    /// Reads the table with the agent's precedence. On an emulated processor a reading takes half a second, and would take several seconds while the agent
    /// works on the same processor.
    fn to(ns: &Netns, node: u8) -> Result<Self> {
        let text = ns.run(|| {
            setpriority_process(None, -20)?;
            let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs_conn");
            setpriority_process(None, 0)?;
            text
        })?;
        let destination = format!(" 0AF4{node:02X}");
        let mut found = Self::default();
        for line in text.lines() {
            // A line has the protocol, the client and its port, the service and its port, and then the destination.
            if !line.get(31..).is_some_and(|rest| rest.starts_with(&destination)) {
                continue;
            }
            match (line.starts_with("UDP"), line.contains(" ESTABLISHED ")) {
                (true, _) => found.udp += 1,
                (false, true) => found.tcp += 1,
                (false, false) => found.others += 1,
            }
        }
        Ok(found)
    }

    fn all(self) -> usize {
        self.udp + self.tcp + self.others
    }
}

/// The number of conntrack entries whose answers come from pods of a node.
fn entries(ns: &Netns, node: u8) -> Result<usize> {
    ns.run(move || {
        let mut count = 0;
        let dump = Conntrack::open_all_zones()?.dump(Half::V4, |flow| {
            let from: Option<[u8; 4]> = match IpAddr::from(flow.reply.src) {
                IpAddr::V4(v4) => Some(v4.octets()),
                IpAddr::V6(_) => None,
            };
            count += usize::from(from.is_some_and(|octets| octets[..3] == [10, 244, node]));
            false
        })?;
        ensure!(!dump.incomplete, "conntrack changes too fast");
        Ok(count)
    })
}

/// The number of all conntrack entries.
fn tracked(ns: &Netns) -> Result<usize> {
    let text = ns.run(|| std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"))?;
    Ok(text.trim().parse()?)
}

/// Listens for all pods of a node without accepting, so that a connection only needs a place in the queue.
fn listen_as_pods(ns: &Netns) -> Result<Vec<OwnedFd>> {
    ns.run(|| {
        let listen_at = |port: u16| {
            let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from(([0; 4], port))))?;
            listen(&socket, Backlog::new(4_096)?)?;
            Ok(socket)
        };
        (FIRST_PORT..FIRST_PORT + PORTS).map(listen_at).collect()
    })
}

/// The source port of a client. The cluster IP and the node port of a service lead to the same endpoints, so the client has another port for each.
fn port(client: u16, target: SocketAddr) -> SocketAddr {
    let first = if target.port() == 53 { 20_000 } else { 21_000 };
    (NODE, first + client).into()
}

/// The number of clients that were reset. Fails if a client got any other error.
fn reset(streams: &[TcpStream]) -> Result<usize> {
    let mut count = 0;
    for stream in streams {
        match stream.take_error()? {
            Some(error) if error.raw_os_error() == Some(Errno::ECONNRESET as i32) => count += 1,
            Some(error) => return Err(error).context("a client that waits got another error than a reset"),
            None => {}
        }
    }
    Ok(count)
}

/// The row of node B in the part of `status` about IPVS.
fn row(agent: &Agent) -> Result<Value> {
    Ok(agent.status()?["ipvs"]["nodes"]["node-b"].clone())
}

#[test]
fn with_half_of_the_flows_tcp() -> Result<()> {
    drained(if emulated() { EMULATED } else { ALL }, true)?;
    if emulated() && long() {
        drained(ALL, false).context("at full size")?;
    }
    Ok(())
}

/// Flags and unflags node B in a cluster of this size. `promised` says whether the times are checked.
fn drained(size: Size, promised: bool) -> Result<()> {
    let cluster = ipvs::cluster()?;
    let ns = &cluster.a.ns;
    ns.ip("route add local 10.97.0.0/16 dev lo")?;
    // The pods do not answer. Entries without an answer live for 30 s, and an emulated processor needs longer to send all datagrams.
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "600")?;
    let mut listening = Vec::new();
    for node in [&cluster.b, &cluster.c] {
        // The pods are addresses of their nodes, which drop datagrams.
        node.ns.ip(&format!("route add local 10.244.{}.0/24 dev lo", node.index))?;
        node.ns.nft(
            "table inet pods {
                chain in { type filter hook prerouting priority -400; udp dport 7000-7099 drop; }
            }",
        )?;
        listening.extend(listen_as_pods(&node.ns)?);
    }
    ns.feed("ipvsadm -R", &rules(size)?)?;
    let file = cluster.services_file() + &services(size)?;
    let before = saved(ns)?;
    let agent = Agent::start_with(ns, "node-a", &cluster.interfaces(), &file, &["--proxy", "ipvs"])?;
    let begun = Instant::now();
    let waiting = each::connections(ns, port, size.clients, &size.targets(true)?)?;
    let connected = begun.elapsed();
    each::datagrams(ns, NODE, usize::from(size.clients), &size.targets(false)?)?;
    println!(
        "{} connections made in {connected:?}, then datagrams sent in {:?}",
        waiting.len(),
        begun.elapsed() - connected
    );
    let mut mine = Connections::default();
    let mut theirs = Connections::default();
    wait_until("all flows are there", LIMIT, || {
        let found = [2, 3].map(|node| Connections::to(ns, node).unwrap_or_default());
        [mine, theirs] = found;
        mine.udp + theirs.udp == size.flows() && mine.tcp + theirs.tcp == size.flows()
    })
    .with_context(|| format!("{mine:?} and {theirs:?}"))?;
    ensure!(2 * mine.udp >= theirs.udp && 2 * mine.tcp >= theirs.tcp, "{mine:?}, {theirs:?}");
    ensure!(entries(ns, 2)? >= mine.all());

    let tracked = tracked(ns)?;
    let [listed_before, _] = agent.conntrack_listings()?;
    let report: Value = serde_json::from_str(&agent.expect(&["flag", "node-b", "-o", "json"])?)?;
    // Times count from when the agent received the request, since the start of the command takes a good part of a second on an emulated processor.
    let received = report["received_ns"].as_u64().context("when the flag was received")?;
    let flagged = moment(received);
    let since_flag = || Duration::from_nanos(monotonic_ns().saturating_sub(received));
    // The number of entries costs nothing to read, but a reading of the tables delays whoever changes them. So the test waits for the number, and checks the
    // entries afterwards.
    let fewer = |by: usize| self::tracked(ns).is_ok_and(|now| now + by <= tracked);
    wait_until("conntrack has fewer entries", LIMIT, || fewer(mine.udp)).with_context(|| agent.log())?;
    let of_datagrams = since_flag();
    wait_until("conntrack has still fewer", LIMIT, || fewer(mine.all())).with_context(|| agent.log())?;
    let of_conntrack = since_flag();
    let gone = || Connections::to(ns, 2).is_ok_and(|left| left.all() == 0);
    wait_until("node B's flows are gone from IPVS", LIMIT, gone)
        .with_context(|| format!("{:?}\n{}", Connections::to(ns, 2), agent.log()))?;
    let of_both = since_flag();
    let left = entries(ns, 2)?;
    ensure!(left == 0, "{left} conntrack entries of node B");
    let settled = || {
        agent.status().is_ok_and(|status| {
            status["ipvs"]["nodes"]["node-b"]["waiting"] == 0 && status["challenged"]["node-b"].is_object()
        })
    };
    wait_until("node B is drained and its clients are challenged", LIMIT, settled)
        .with_context(|| agent.log())?;
    let row = row(&agent)?;
    let challenges = agent.status()?["challenged"]["node-b"].clone();
    println!(
        "{} pairs, {mine:?}, {theirs:?}; UDP gone from conntrack after {of_datagrams:?}; conntrack without them after {of_conntrack:?}, IPVS too after {of_both:?}, tombstones after {:?}; {challenges}",
        row["drained"],
        since_flag()
    );
    let [listed, _] = agent.conntrack_listings()?;
    let listings = listed - listed_before;
    figure("listings of conntrack", listings as f64, "of 3");
    ensure!((1..=3).contains(&listings), "conntrack was listed {listings} times");
    let were_reset = reset(&waiting)?;
    figure("clients reset", were_reset as f64, &format!("of {}", mine.tcp));
    for (what, took) in [
        ("UDP gone from conntrack", of_datagrams),
        ("all gone from conntrack", of_conntrack),
        ("all gone from IPVS too", of_both),
    ] {
        if promised {
            held(what, PROMISED, flagged, took)?;
        } else {
            figure(what, took.as_secs_f64() * 1e3, "ms");
        }
    }
    // Each service has four destinations on node B, and the cluster's own services have some too.
    ensure!(row["drained"].as_u64() >= Some((size.servers() * EACH) as u64), "{row}");
    ensure!(
        !promised || were_reset == mine.tcp,
        "{were_reset} of {} clients that wait were reset: {challenges}",
        mine.tcp
    );
    let now = Connections::to(ns, 3)?;
    ensure!(now == theirs, "{theirs:?} flows to node C became {now:?}");

    let unflagged = Instant::now();
    agent.unflag("node-b")?;
    let is_back = || self::row(&agent).is_ok_and(|row| row.is_null());
    if promised {
        wait_within("restored in IPVS", RESTORED, unflagged, is_back)?;
    } else {
        let took = wait_until("restored in IPVS", LIMIT, is_back)?;
        figure("restored in IPVS", took.as_secs_f64() * 1e3, "ms");
    }
    ensure!(saved(ns)? == before, "the table is not as it was");
    Ok(())
}
