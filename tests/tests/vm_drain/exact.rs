//! UDP flows, SCTP flows and templates are deleted at once, TCP flows once their clients have been challenged. Flows of other nodes stay, to the last one.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    process::Command,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nodefence::{
    conntrack::{Conntrack, Family as Half, Flow, TcpState},
    flags::monotonic_ns,
    ipvs::Ipvs,
};
use nodefence_tests::{
    Cluster, Conn, Family, Netns, Outcome, Place, Proc, bin,
    checks::reset_by_now,
    client::{Over, UdpConn, try_new},
    emulated,
    ipvs::Snapshot,
    topology::Service,
    watch::{figure, held, moment},
};
use serde_json::Value;

use super::common::{
    CONNECTIONS, LIMIT, addresses, agent, answered_by_c, cluster, connections, open, saved, untouched,
    wait_drained, wait_same,
};

/// The promise for flows whose clients are not challenged, and for TCP flows after the challenges.
const AT_ONCE: Duration = Duration::from_millis(200);
/// Rounds: one sets weight 0, one deletes what has no connection any more, one deletes the rest after the challenges, and one finds nothing left.
const ROUNDS: u32 = 4;
/// The kernel's part counts for so much at most: 46 ms were measured on 5.10, and 96 on 7.3.
const KERNEL: Duration = Duration::from_millis(300);
/// A client's error can be read by then.
const TOLD: Duration = Duration::from_millis(50);
/// How long a round of challenges may take here.
const CHALLENGING: Duration = Duration::from_secs(1);

/// A service of datagrams, with persistence.
const STICKY: &str = "10.96.0.34:53";
/// A service of connections, with persistence, which `common` adds. Of three clients node B gets two by its weight.
const STICKY_WEB: &str = "10.96.0.30:80";

/// Entries of services whose answers come from there, by protocol and original direction. SCTP speaks to the pods themselves as well, whose
/// addresses the server tells: those are no service's.
fn entries(ns: &Netns, from: &[IpAddr]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for family in ["ipv4", "ipv6"] {
        for line in ns.exec(&format!("conntrack -L -f {family}"))?.lines() {
            let nth = |name: &str, n: usize| -> Result<IpAddr> {
                let mut values = line.split_whitespace().filter_map(|word| word.strip_prefix(name));
                Ok(values.nth(n).with_context(|| line.to_owned())?.parse()?)
            };
            let (service, backend) = (nth("dst=", 0)?, nth("src=", 1)?);
            if !from.contains(&backend) || service == backend || line.contains(" CLOSE ") {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let tuple = words.iter().filter(|word| word.contains('=')).take(4);
            found.insert(format!("{} {}", words[0], tuple.copied().collect::<Vec<_>>().join(" ")));
        }
    }
    Ok(found)
}

/// When the kernel's tables had nothing left of a node, CLOCK_MONOTONIC in nanoseconds.
#[derive(Default)]
struct Left {
    datagrams: [Option<u64>; 2],
    all: [Option<u64>; 2],
    /// When each look at both tables began, and how long it took.
    looks: Vec<(u64, Duration)>,
}

/// Place of a table in [`Left`].
const IPVS: usize = 0;
const CONNTRACK: usize = 1;

impl Left {
    /// How long a look took since then, on average.
    fn look_took(&self, since: u64) -> Duration {
        let looks = self.looks.iter().filter(|(began, _)| *began >= since);
        let looks: Vec<Duration> = looks.map(|(_, took)| *took).collect();
        looks.iter().sum::<Duration>() / u32::try_from(looks.len().max(1)).unwrap_or(u32::MAX)
    }

    /// A look counts by when it began, as those of [`nodefence_tests::watch::wait_within`] do.
    fn look(&mut self, table: usize, began: u64, datagrams: usize, all: usize) {
        for (at, left) in [(&mut self.datagrams[table], datagrams), (&mut self.all[table], all)] {
            if left == 0 {
                at.get_or_insert(began);
            }
        }
    }
}

/// Looks all the time from within the node's namespace, since a program of its own takes longer to start than what is measured.
fn look_all_the_time(ns: &Netns, from: &[IpAddr]) -> JoinHandle<Result<Left>> {
    let from = from.to_vec();
    ns.run(move || {
        thread::spawn(move || {
            let mut conntrack = Conntrack::open_all_zones()?;
            let (begun, mut seen) = (Instant::now(), Left::default());
            while begun.elapsed() < LIMIT {
                let both = seen.all[IPVS].is_none().then(monotonic_ns);
                if seen.all[IPVS].is_none() {
                    let looked = monotonic_ns();
                    let left = open(&fs::read_to_string(CONNECTIONS)?, &from)?;
                    seen.look(IPVS, looked, left.len() - of(&left, "TCP"), left.len());
                }
                let looked = monotonic_ns();
                let mut left = Vec::new();
                for family in [Half::V4, Half::V6] {
                    let is_left = |flow: &Flow| {
                        flow.is_balanced()
                            && flow.tcp != Some(TcpState::Close)
                            && from.contains(&flow.backend().ip())
                    };
                    left.extend(conntrack.dump(family, is_left)?.flows);
                }
                let datagrams = left.iter().filter(|flow| flow.tcp.is_none()).count();
                seen.look(CONNTRACK, looked, datagrams, left.len());
                seen.looks.extend(both.map(|began| (began, Duration::from_nanos(monotonic_ns() - began))));
                if seen.all.iter().all(Option::is_some) {
                    return Ok(seen);
                }
                thread::sleep(Duration::from_millis(2));
            }
            bail!("something was left after {LIMIT:?}")
        })
    })
}

/// The kernel's part on an emulated processor, measured before there is any and beside the watcher: to read all tables, which the agent
/// does in each of its rounds, and to delete so many entries of conntrack.
fn yardstick(ns: &Netns, from: &[IpAddr], entries: usize) -> Result<[Duration; 2]> {
    let from = from.to_vec();
    ns.run(move || {
        let mut conntrack = Conntrack::open_all_zones()?;
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            Snapshot::read(&mut Ipvs::open()?)?;
            open(&fs::read_to_string(CONNECTIONS)?, &from)?;
            for family in [Half::V4, Half::V6] {
                conntrack.dump(family, |flow| from.contains(&flow.backend().ip()))?;
            }
        }
        let read = begun.elapsed();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let from_here = socket.local_addr()?.port();
        for port in 40_000..40_000 + u16::try_from(entries)? {
            // The port has no listener: the next datagram may report that.
            let _refused = socket.send_to(b"x", (Ipv4Addr::LOCALHOST, port));
        }
        let ours = conntrack.dump(Half::V4, |flow| flow.orig.src_port == from_here)?.flows;
        ensure!(ours.len() == entries, "{} of {entries} entries", ours.len());
        let begun = Instant::now();
        conntrack.delete(&ours)?;
        Ok([read, begun.elapsed()])
    })
}

/// The part of a connection's line that stays the same while the connection lives.
fn names(lines: &[String]) -> BTreeSet<String> {
    lines.iter().map(|line| line.split_whitespace().take(7).collect::<Vec<_>>().join(" ")).collect()
}

/// Whether a line is a template of a persistent service: by it all connections of a client go where its first one went (`ip_vs_sched_persist`, ip_vs_core.c).
fn is_template(line: &str) -> bool {
    line.split_whitespace().nth(2) == Some("0000")
}

fn of(lines: &[String], protocol: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(protocol)).count()
}

fn serve_sctp(cluster: &Cluster) -> Result<Vec<Proc>> {
    let serve = |node: &nodefence_tests::Node| {
        let mut command = Command::new(bin("nodefence-peer")?);
        command.arg(node.name).arg("sctp=3868");
        Proc::spawn_ready(&node.pod, command)
    };
    [&cluster.b, &cluster.c].into_iter().map(serve).collect()
}

#[test]
fn in_time_and_nothing_else() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let _servers = serve_sctp(&cluster)?;
    ns.ip("addr add 10.96.0.31/32 dev kube-ipvs0\naddr add 10.96.0.34/32 dev kube-ipvs0")?;
    let pods = [&cluster.b, &cluster.c].map(|node| node.endpoint(Service::Dns, Family::V4));
    ns.feed(
        "ipvsadm -R",
        &format!(
            "-A -u {STICKY} -s rr -p 10800\n-a -u {STICKY} -r {} -m -w 1\n-a -u {STICKY} -r {} -m -w 1\n",
            pods[0], pods[1]
        ),
    )?;
    let before = saved(ns)?;
    let agent = agent(&cluster)?;
    let diameter: SocketAddr = "10.96.0.31:3868".parse()?;
    let pod = cluster.at(Place::Pod);
    let (mut idle, mut open, mut datagrams) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["node-b", "node-c"] {
        for _ in 0..3 {
            for family in [Family::V4, Family::V6] {
                let web = cluster.service(Service::Web, Place::Pod, family);
                let dns = cluster.service(Service::Dns, Place::Pod, family);
                let mut conn = Conn::connect_to(pod, web, name, LIMIT)?;
                if name == "node-b" {
                    conn.long_poll()?;
                    idle.push(conn);
                } else {
                    open.push(conn);
                }
                datagrams.push(UdpConn::connect_to(pod, dns, name, LIMIT)?);
            }
            open.push(Conn::over_to(Over::Sctp, pod, diameter, name, LIMIT)?);
        }
    }
    // By turns, so that one of three clients at least has a template for node B.
    for place in Place::ALL {
        let conn = UdpConn::connect(cluster.at(place), STICKY.parse()?, LIMIT)?;
        conn.who()?;
        datagrams.push(conn);
    }
    // Each client's second connection goes where its first one went.
    let mut sticky = Vec::new();
    for place in Place::ALL {
        let connect = || Conn::connect(cluster.at(place), STICKY_WEB.parse()?, LIMIT).context("connect");
        let (mut first, mut second) = (connect()?, connect()?);
        let name = first.who()?;
        ensure!(second.who()? == name, "{place:?} is not kept at {name}");
        sticky.push((place, name == "node-b", [first, second]));
    }
    let moving = sticky.iter().filter(|(_, moves, _)| *moves).count();
    let (to_b, to_c) = (addresses(&cluster.b), addresses(&cluster.c));
    let (mine, theirs) = (connections(ns, &to_b)?, names(&connections(ns, &to_c)?));
    let templates: Vec<String> = mine.iter().filter(|line| is_template(line)).cloned().collect();
    ensure!(of(&templates, "UDP") >= 1, "{templates:?}");
    ensure!(moving >= 1 && of(&templates, "TCP") == moving, "{moving} of TCP: {templates:?}");
    ensure!(of(&mine, "TCP") >= 6 && of(&mine, "UDP") >= 6 && of(&mine, "SCTP") >= 3, "{mine:?}");
    let kept = entries(ns, &to_c)?;
    ensure!(entries(ns, &to_b)?.len() >= 15 && kept.len() >= 15, "{kept:?}");

    let watch = look_all_the_time(ns, &to_b);
    let [reads, deletes] = yardstick(ns, &to_b, mine.len())?;
    let report: Value = serde_json::from_str(&agent.expect(&["flag", "node-b", "-o", "json"])?)?;
    let received = report["received_ns"].as_u64().context("when it was asked")?;
    let flagged = moment(received);
    let seen = watch.join().map_err(|_| anyhow!("the watching thread panicked"))?;
    let seen = seen.with_context(|| agent.log())?;
    let since = |at: Option<u64>| Duration::from_nanos(at.unwrap_or(u64::MAX).saturating_sub(received));
    // The round of challenges began some time after that, so it ended so much later or somewhat more.
    let row = agent.status()?["challenged"]["node-b"].clone();
    let challenging = Duration::from_secs_f64(row["seconds"].as_f64().context("nobody was challenged")?);
    held("clients challenged", CHALLENGING, flagged, challenging).with_context(|| row.to_string())?;
    // The watcher reads the same tables as the agent: the processors may be slower now than before.
    let kernel = reads.max(seen.look_took(received) * ROUNDS) + deletes;
    figure("the kernel reads and deletes so much", kernel.as_secs_f64() * 1e3, "ms");
    let at_once = if emulated() { AT_ONCE + kernel.min(KERNEL) } else { AT_ONCE };
    for (table, name) in [(IPVS, "IPVS"), (CONNTRACK, "conntrack")] {
        let (datagrams, all) = (since(seen.datagrams[table]), since(seen.all[table]));
        held(&format!("UDP and SCTP gone from {name}"), at_once, flagged, datagrams)?;
        let after_challenge = all.saturating_sub(challenging);
        held(
            &format!("TCP gone from {name} after the challenges"),
            at_once,
            flagged + challenging,
            after_challenge,
        )?;
    }
    for conn in &mut idle {
        let outcome = conn.wait_end(TOLD);
        ensure!(outcome == Outcome::Reset, "an idle client after all were challenged: {outcome:?}; {row}");
    }
    let left = (connections(ns, &to_b)?, entries(ns, &to_b)?);
    ensure!(left.0.is_empty() && left.1.is_empty(), "{left:?}");

    // Clients that had node C before have it now, and each of these flows still works.
    let now = names(&connections(ns, &to_c)?);
    ensure!(theirs.is_subset(&now), "lost {:?}", theirs.difference(&now));
    let now = entries(ns, &to_c)?;
    ensure!(kept.is_subset(&now), "conntrack lost {:?}", kept.difference(&now));
    let mut answered = 0;
    for conn in &mut open {
        answered += usize::from(conn.who().is_ok_and(|name| name == "node-c"));
    }
    // Six over TCP, three over SCTP; the three SCTP associations with node B are no more.
    ensure!(answered == 9, "{answered} of 9 flows to node C answered");
    answered_by_c(&datagrams)?;
    ensure!(Conn::over_to(Over::Sctp, pod, diameter, "node-c", LIMIT).is_ok(), "no new association");
    for (place, moves, conns) in &mut sticky {
        for conn in conns {
            if *moves {
                reset_by_now(conn).with_context(|| format!("{place:?}"))?;
            } else {
                let outcome = conn.request();
                ensure!(outcome == Outcome::Answered, "{place:?}: {outcome:?}");
            }
        }
        let (outcome, who) = try_new(cluster.at(*place), STICKY_WEB.parse()?, LIMIT);
        ensure!(who.as_deref() == Some("node-c"), "{place:?}: {outcome:?} by {who:?}");
    }
    let templates: Vec<_> = connections(ns, &to_c)?.into_iter().filter(|line| is_template(line)).collect();
    ensure!(of(&templates, "TCP") == sticky.len(), "{templates:?}");
    wait_drained(&cluster, &agent)?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}
