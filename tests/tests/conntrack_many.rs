//! A flag while conntrack's table is large: how often the agent lists the table, how long that takes, and how much memory the agent needs.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::flags::monotonic_ns;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Outcome, Place, agent::verdict_until, client::wait_until,
    emulated, topology::Service, watch::figure,
};

/// A limit that leaves room for a dump of a million entries on an emulated processor, which takes many seconds.
const LIMIT: Duration = Duration::from_secs(240);
/// The most MiB that the agent may need.
const MEMORY: f64 = 64.0;
/// The most listings of each half of the table. The first finds stale flows and flows to challenge, the second the challenged flows, the third flows that came
/// meanwhile.
const LISTINGS: u64 = 3;

/// The number of entries in the table. A kernel outside of guests has room for 262,144 by default.
fn size() -> u32 {
    if emulated() { 1_000_000 } else { 250_000 }
}

/// Sends `count` datagrams to ports and addresses of loopback without a listener, each to another one.
fn fill(ns: &Netns, count: u32) {
    ns.run(move || {
        let socket = UdpSocket::bind(("127.0.0.1", 40_000)).unwrap();
        for at in 0..count {
            let [_, a, b, c] = (at / 1_000 + 256).to_be_bytes();
            // The second datagram may report that there is no listener.
            let _ = socket.send_to(b"x", (Ipv4Addr::new(127, a, b, c), 10_000 + (at % 1_000) as u16));
        }
    });
}

/// Sends datagrams to `count` ports of a pod.
fn stale_flows(ns: &Netns, pod: IpAddr, count: u16) {
    ns.run(move || {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        for port in 0..count {
            let _ = socket.send_to(b"x", (pod, 20_000 + port));
        }
    });
}

fn tracked(ns: &Netns) -> Result<u32> {
    let text = ns.run(|| std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"))?;
    Ok(text.trim().parse()?)
}

/// Measures the shortest time for which a verdict still holds at any moment.
struct Renewals {
    stop: Arc<AtomicBool>,
    looking: JoinHandle<u64>,
}

impl Renewals {
    fn of(ns: &Arc<Netns>, index: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let ns = Arc::clone(ns);
        let looking = std::thread::spawn(move || {
            let mut least = u64::MAX;
            while !ended.load(Ordering::SeqCst) {
                let until = verdict_until(&ns, index).unwrap();
                least = least.min(until.saturating_sub(monotonic_ns()));
                std::thread::sleep(Duration::from_millis(50));
            }
            least
        });
        Self { stop, looking }
    }

    /// The shortest time in ns. It is 0 if the verdict had lapsed.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.looking.join().unwrap()
    }
}

#[test]
fn a_flag_has_a_large_table_listed_three_times_at_most() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let ns = &cluster.a.ns;
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "3600")?;
    let of_b = 10_000;
    fill(ns, size() - u32::from(of_b) - 1_000);
    stale_flows(ns, cluster.b.pod_address(Family::V4), of_b);
    // The file has Services, so the agent rescues. An agent that rescues lists the entries that it deletes on each kernel.
    let file = cluster.services_file();
    let agent = Agent::start_with(ns, "node-a", &cluster.interfaces(), &file, &["--proxy", "auto"])?;
    let mut idle = Vec::new();
    for family in [Family::V4, Family::V6] {
        let web = cluster.service(Service::Web, Place::Outside, family);
        for _ in 0..10 {
            idle.push(Conn::connect_to(&cluster.client, web, "node-b", LIMIT)?);
        }
    }
    let entries = tracked(ns)?;
    ensure!(entries >= size() - 1_000, "{entries} entries");
    cluster.b.freeze()?;
    let resting = agent.proc()?.memory("VmRSS")?;
    let before = agent.conntrack_listings()?;

    let flagged = Instant::now();
    agent.flag("node-b")?;
    let index = agent.node("node-b")?["index"].as_u64().context("node B's place")?;
    let renewals = Renewals::of(ns, index.try_into()?);
    for conn in &mut idle {
        let outcome = conn.wait_end(LIMIT);
        ensure!(outcome == Outcome::Reset, "{outcome:?}\n{}", agent.log());
    }
    let took = flagged.elapsed();
    let row = || Ok::<_, anyhow::Error>(agent.status()?["stale"]["node-b"].clone());
    let datagrams = || row().is_ok_and(|row| row["datagrams"].as_u64() >= Some(u64::from(of_b)));
    wait_until("datagrams are deleted", LIMIT, datagrams).with_context(|| format!("{:?}", row()))?;
    // If the listing takes long, entries of connections that were reset lapse before it. So the test waits for the listing itself.
    let listed_again = || agent.conntrack_listings().is_ok_and(|now| now[0] >= before[0] + 2);
    wait_until("entries of TCP are listed", LIMIT, listed_again).with_context(|| format!("{:?}", row()))?;
    let deleted = flagged.elapsed();
    // The agent looks for new stale flows each second, or less often, so that the listings take at most 5 % of a processor.
    std::thread::sleep(if emulated() { deleted * 2 } else { Duration::from_secs(5) }.min(LIMIT));
    let after = agent.conntrack_listings()?;
    let most = agent.proc()?.memory("VmHWM")?;
    println!(
        "{entries} entries: clients reset after {took:?}, deleted after {deleted:?}; listed {before:?} before, {after:?} after; \
         {resting} MiB before, {most} at most"
    );
    figure("large conntrack table, to the last idle client", took.as_secs_f64() * 1e3, "ms");
    figure("large conntrack table, most memory of the agent", most, "MiB");
    for (before, after) in before.into_iter().zip(after) {
        ensure!((1..=LISTINGS).contains(&(after - before)), "listed {before} times before, {after} after");
    }
    let least = renewals.end();
    println!("the verdict was renewed {:?} before its end at the latest", Duration::from_nanos(least));
    ensure!(least > 0, "the verdict lapsed\n{}", agent.log());
    ensure!(most <= MEMORY, "{most} MiB");
    Ok(())
}
