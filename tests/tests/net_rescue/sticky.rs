//! Clients that kube-proxy keeps at one endpoint (`sessionAffinity: ClientIP`), by sets and rules like those of its nftables mode.
use std::{
    fmt::Write as _,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence::{cluster::Protocol, proxy::Endpoint};
use nodefence_common::RESCUE_LEASE_NS;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Outcome, Place,
    client::{try_new, wait_until},
    emulated,
    load::{repeat, under},
    topology::{Node, Service},
    traced::Still,
    watch::figure,
};

use super::common::{LIMIT, connect, excused, lease_lapsed, own_counter, rescue_ready};

/// The name of the set of clients that are kept at a node's endpoint.
pub(super) fn set(node: &Node) -> String {
    let socket = (node.pod_address(Family::V4), Service::Web.ports().1).into();
    Endpoint { service: "default/web", port: "", protocol: Protocol::Tcp, socket }.set()
}

/// A cluster whose web Service has affinity, and an agent that rescues and whose cluster file says so.
pub(super) fn keeping() -> Result<(Cluster, Agent)> {
    let cluster = Cluster::new(Options::default())?;
    let file = cluster.services_file();
    let (before, web) = file.split_once("- name: default/web\n").context("no Service web")?;
    let web = web.replacen("    endpoints:", "    sessionAffinity: ClientIP\n    endpoints:", 1);
    let file = format!("{before}- name: default/web\n{web}");
    for node in [&cluster.b, &cluster.c] {
        cluster.a.ns.nft(&format!(
            "add set ip kube-proxy {} {{ type ipv4_addr; flags dynamic,timeout; timeout 3h; }}",
            set(node)
        ))?;
    }
    let agent = Agent::start_with(&cluster.a.ns, "node-a", &["eth0"], &file, &["--proxy", "auto"])?;
    rescue_ready(&agent)?;
    Ok((cluster, agent))
}

/// kube-proxy sends a client of such a Service to the same endpoint again, unless the client is deleted from the endpoint's set.
#[test]
fn clients_that_are_kept_at_one_endpoint_go_elsewhere_too() -> Result<()> {
    let (cluster, agent) = keeping()?;
    let b = set(&cluster.b);
    let c = set(&cluster.c);
    cluster.a.ns.nft(&format!(
        "flush chain ip kube-proxy service-web
         add rule ip kube-proxy service-web ip saddr @{b} goto endpoint-web-0
         add rule ip kube-proxy service-web ip saddr @{c} goto endpoint-web-1
         add rule ip kube-proxy service-web numgen random mod 2 vmap {{ 0 : goto endpoint-web-0, 1 : goto endpoint-web-1 }}
         insert rule ip kube-proxy endpoint-web-0 update @{b} {{ ip saddr timeout 3h }}
         insert rule ip kube-proxy endpoint-web-1 update @{c} {{ ip saddr timeout 3h }}"
    ))?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    let keep_at_b = || {
        cluster.a.ns.nft(&format!(
            "flush set ip kube-proxy {c}
             add element ip kube-proxy {b} {{ 192.0.2.2 }}"
        ))
    };
    keep_at_b()?;
    for _ in 0..5 {
        let (outcome, who) = try_new(&cluster.client, to, LIMIT);
        ensure!(outcome == Outcome::Answered && who.as_deref() == Some("node-b"), "{outcome:?}, {who:?}");
    }
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    for at in 0..10 {
        keep_at_b()?;
        let took = connect(&cluster, Service::Web, Place::Outside, Family::V4, &cluster.c);
        let took = took.with_context(|| {
            format!("connection {at}\n{}", agent.expect(&["counters"]).unwrap_or_default())
        })?;
        println!("kept at B, went to C in {took:?}");
        connect(&cluster, Service::Web, Place::Outside, Family::V4, &cluster.c).context("kept at C now")?;
    }
    ensure!(own_counter(&agent, "rescued")? >= 10, "{}", agent.expect(&["counters"])?);
    Ok(())
}

/// The agent deletes only the client whose packet is rescued from the set, not all clients.
#[cfg(target_arch = "x86_64")]
#[test]
fn other_clients_stay_where_they_are_kept() -> Result<()> {
    let (cluster, agent) = keeping()?;
    let b = set(&cluster.b);
    let others: Vec<String> = (1..=200).map(|at| format!("198.18.0.{at} ")).collect();
    let rules = format!(
        "insert rule ip kube-proxy endpoint-web-0 update @{b} {{ ip saddr timeout 3h }}
         insert rule ip kube-proxy service-web ip saddr @{b} goto endpoint-web-0"
    );
    cluster.a.ns.nft(&rules)?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    // This thread deletes all clients of the hung endpoint each second, so it is stopped.
    let still = Still::of_next(agent.proc()?.pid(), "stale-flows", || Ok(()))?;
    let elements = others.join(", ");
    cluster.a.ns.nft(&format!("add element ip kube-proxy {b} {{ {elements}, 192.0.2.2 }}"))?;
    connect(&cluster, Service::Web, Place::Outside, Family::V4, &cluster.c)
        .with_context(|| agent.expect(&["counters"]).unwrap_or_default())?;
    let kept = cluster.a.ns.exec(&format!("nft list set ip kube-proxy {b}"))?;
    ensure!(!kept.contains("192.0.2.2 "), "the client is kept at the hung endpoint:\n{kept}");
    let gone: Vec<&String> = others.iter().filter(|other| !kept.contains(other.as_str())).collect();
    ensure!(gone.is_empty(), "other clients were deleted from the set: {gone:?}");
    still.lift()
}

/// A transaction that makes many rules anew, so that it holds the namespace's mutex for longer than the lease lasts.
fn large_transaction() -> Result<String> {
    // An emulated processor needs as long for fewer rules.
    let rules = if emulated() { 1_000 } else { 60_000 };
    let mut script =
        "add table inet large\nadd chain inet large rules\nflush chain inet large rules\n".to_owned();
    for rule in 0..rules {
        let [_, _, high, low] = u32::to_be_bytes(rule);
        writeln!(script, "add rule inet large rules ip daddr 198.18.{high}.{low} counter")?;
    }
    Ok(script)
}

/// The agent may have to wait for nftables to rescue a packet of such a client. Packets of other clients must not wait meanwhile. When one thread did both, the
/// lease lapsed and some of these connections were refused.
#[test]
fn who_waits_for_nftables_holds_up_nobody_else() -> Result<()> {
    /// Each transaction takes longer than the lease lasts.
    const PATIENCE: Duration = Duration::from_secs(60);
    let (cluster, agent) = keeping()?;
    let b = set(&cluster.b);
    // Only node B keeps clients, so the agent deletes the client again for each pick of node B.
    let keep = format!("insert rule ip kube-proxy endpoint-web-0 update @{b} {{ ip saddr timeout 3h }}");
    cluster.a.ns.nft(&keep)?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let ns = &cluster.a.ns;
    let pod = cluster.at(Place::Pod);
    let script = large_transaction()?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let to = cluster.service(Service::Host, Place::Outside, Family::V4);
    let transactions = AtomicU64::new(0);
    let kept = AtomicU64::new(0);
    let served = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    let longest = AtomicU64::new(0);
    let large = |stop: &AtomicBool| {
        repeat(stop, || {
            ns.nft(&script)?;
            transactions.fetch_add(1, Ordering::Relaxed);
            Ok(Duration::ZERO)
        })
    };
    let keeps = |stop: &AtomicBool| {
        repeat(stop, || {
            // The connect may wait for a transaction, and is refused if that takes too long.
            kept.fetch_add(answered(pod, web).into(), Ordering::Relaxed);
            Ok(Duration::ZERO)
        })
    };
    let others = |stop: &AtomicBool| {
        repeat(stop, || {
            let started = Instant::now();
            let attempt = Conn::attempt(&cluster.client, to, LIMIT);
            attempt.at_first_syn()?;
            // The kernel refuses if the machine itself stood still for longer than the lease, as it should.
            match attempt.request().0 {
                Outcome::Answered => served.fetch_add(1, Ordering::Relaxed),
                Outcome::Refused if lease_lapsed(started) => refused.fetch_add(1, Ordering::Relaxed),
                outcome => bail!("{outcome:?}\n{}", agent.expect(&["counters"])?),
            };
            Ok(Duration::from_millis(5))
        })
    };
    // A small transaction shows how long a transaction has to wait.
    let small = |stop: &AtomicBool| {
        repeat(stop, || {
            let begun = Instant::now();
            ns.nft("add table inet small")?;
            longest.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
            Ok(Duration::ZERO)
        })
    };
    let enough = || {
        transactions.load(Ordering::Relaxed) > 2
            && kept.load(Ordering::Relaxed) > 2
            && served.load(Ordering::Relaxed) > 20
            && longest.load(Ordering::Relaxed) > RESCUE_LEASE_NS
    };
    let clients: [&Client<'_>; 4] = [&large, &keeps, &others, &small];
    let (waited, counts) = under(clients, || {
        wait_until("transactions longer than the lease, and connections", PATIENCE, enough)
    });
    let counts = counts.into_iter().collect::<Result<Vec<u64>>>()?;
    excused(served.into_inner(), refused.into_inner())?;
    let held = Duration::from_nanos(longest.into_inner());
    waited.with_context(|| format!("{counts:?} turns of each, a change took {held:?} at most"))?;
    println!(
        "{} transactions, a change took {held:?} at most; {} connections to the Service that keeps, {} others",
        counts[0], counts[1], counts[2]
    );
    figure("longest wait for an nftables transaction", held.as_secs_f64() * 1e3, "ms");
    Ok(())
}

/// Work that repeats until it is told to stop. Gives the number of times that it ran.
type Client<'a> = dyn Fn(&AtomicBool) -> Result<u64> + Sync + 'a;

fn answered(ns: &Netns, to: SocketAddr) -> bool {
    try_new(ns, to, LIMIT).0 == Outcome::Answered
}
