//! New connections and datagrams that meet the cut are balanced anew. The agent is real, nftables rules pick at random as kube-proxy's do, and clients are
//! outside, in a pod and on the node itself.

use std::{
    io::ErrorKind,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Outcome, Overlay, Place,
    client::UdpConn,
    emulated,
    load::{repeat, under},
    topology::Service,
    watch::figure,
};

mod common;
mod ended;
mod flood;
mod own;
mod refused;
mod sticky;
mod stopped;

use common::{
    BOTH, LIMIT, answered_by, connect, excused, lease_lapsed, none_was_late, own_counter, rescue_ready,
    rescuing,
};

/// Makes `count` connections from each place and half as many UDP sockets, for each IP version. Node C must answer all of them.
fn everywhere(cluster: &Cluster, agent: &Agent, count: usize) -> Result<()> {
    let mut longest = Duration::ZERO;
    let mut connections = 0;
    for place in Place::ALL {
        for family in BOTH {
            for at in 0..count {
                let service = if at % 4 == 3 { Service::Host } else { Service::Web };
                let took = connect(cluster, service, place, family, &cluster.c).with_context(|| {
                    format!(
                        "connection {at} to {service:?}, {place:?}, {family:?}\n{}\n{}",
                        agent.expect(&["counters"]).unwrap_or_default(),
                        agent.log()
                    )
                })?;
                longest = longest.max(took);
                connections += 1;
            }
            let to = cluster.service(Service::Dns, place, family);
            for at in 0..count / 2 {
                let began = Instant::now();
                let conn = UdpConn::connect(cluster.at(place), to, LIMIT)?;
                let who = answered_by(began, conn.who());
                let who = who.with_context(|| format!("socket {at}, {place:?}, {family:?}"))?;
                ensure!(who == "node-c", "socket {at}, {place:?}, {family:?}: answered by {who}");
            }
        }
    }
    println!("{:?}: {connections} connections, the longest took {longest:?}", cluster.options.overlay);
    figure("longest of the connections that went elsewhere", longest.as_secs_f64() * 1e3, "ms");
    Ok(())
}

fn hung(options: Options, count: usize) -> Result<()> {
    let cluster = Cluster::new(options)?;
    let agent = rescuing(&cluster, &[])?;
    // These flows to node B are from before the flag, so they are stale.
    let mut stale = Vec::new();
    for place in Place::ALL {
        for family in BOTH {
            let to = cluster.service(Service::Dns, place, family);
            stale.push((place, family, UdpConn::connect_to(cluster.at(place), to, "node-b", LIMIT)?));
        }
    }
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let began = Instant::now();
    for (place, family, conn) in &stale {
        let who = answered_by(began, conn.who()).with_context(|| format!("stale, {place:?}, {family:?}"))?;
        ensure!(who == "node-c", "stale, {place:?}, {family:?}: answered by {who}");
    }
    everywhere(&cluster, &agent, count)?;
    let rescued = own_counter(&agent, "rescued")?;
    // One of two picks is node B.
    ensure!(rescued as usize > count * 3, "{rescued} were rescued");
    for reason in [Reason::Refused, Reason::Unreachable] {
        ensure!(agent.counter(reason)? == 0, "{reason:?}: {}", agent.expect(&["counters"])?);
    }
    for name in ["rescue_tries", "rescue_untranslated", "rescue_not_sent", "rescue_repeated"] {
        ensure!(own_counter(&agent, name)? == 0, "{}", agent.expect(&["counters"])?);
    }
    none_was_late(began, own_counter(&agent, "rescue_late")?)?;
    let told = agent.status()?;
    ensure!(told["rescue"]["own"]["state"] == "balanced", "{told}");
    ensure!(
        agent
            .expect(&["status", "-o", "wide"])?
            .contains("are balanced anew (of own sockets: balanced anew)")
    );
    Ok(())
}

/// None of 504 connections fails, and none waits until its SYN is sent again.
#[test]
fn new_connections_and_datagrams_go_elsewhere_at_once() -> Result<()> {
    hung(Options::default(), 84)
}

#[test]
fn the_same_with_clients_seen_by_the_backends() -> Result<()> {
    hung(Options { masquerade: false, ..Options::default() }, 12)
}

#[test]
fn the_same_through_a_tunnel() -> Result<()> {
    hung(Options { overlay: Overlay::Vxlan, ..Options::default() }, 12)
}

#[test]
fn the_same_through_a_device_without_link_layer() -> Result<()> {
    hung(Options { overlay: Overlay::Tun, ..Options::default() }, 12)
}

/// Sixty connections at a time, or a dozen on an emulated processor, meet the cut while others are on their way through the agent.
#[test]
fn connections_at_once_do_not_hinder_each_other() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let at_once = if emulated() { 12 } else { 60 };
    for place in [Place::Outside, Place::Node] {
        let to = cluster.service(Service::Web, place, Family::V4);
        for round in 0..5 {
            let answers: Vec<_> = std::thread::scope(|scope| {
                let connect = || -> Result<String> {
                    let began = Instant::now();
                    let attempt = Conn::attempt(cluster.at(place), to, LIMIT);
                    attempt.at_first_syn()?;
                    // The answer shows that the server has accepted the connection, so the queue is empty for the next round.
                    answered_by(began, attempt.conn.and_then(|mut conn| conn.who()))
                };
                let running: Vec<_> = (0..at_once).map(|_| scope.spawn(connect)).collect();
                running.into_iter().map(|thread| thread.join()).collect()
            });
            for one in answers {
                let one = one.ok().context("a thread panicked")?;
                let who = one.with_context(|| {
                    format!("{place:?}, round {round}\n{}", agent.expect(&["counters"]).unwrap_or_default())
                })?;
                ensure!(who == "node-c", "{place:?}, {round}: {who}");
            }
        }
    }
    ensure!(agent.counter(Reason::Refused)? == 0 && own_counter(&agent, "rescue_tries")? == 0);
    Ok(())
}

/// Many datagrams of one flow are on their way when its entry is deleted. None is refused.
#[test]
fn a_burst_of_datagrams_moves_as_a_whole() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    let to = cluster.service(Service::Dns, Place::Outside, Family::V4);
    let conn = UdpConn::connect_to(&cluster.client, to, "node-b", LIMIT)?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let burst = if emulated() { 40 } else { 200 };
    for at in 0..burst {
        conn.socket.send(&u32::to_be_bytes(at)).with_context(|| format!("datagram {at}"))?;
    }
    let mut buffer = [0; 64];
    for at in 0..burst {
        let len = conn.socket.recv(&mut buffer).with_context(|| format!("answer {at}"))?;
        ensure!(buffer[..len].starts_with(b"node-c "), "answered by another node");
    }
    Ok(())
}

/// At each flag the agent deletes the node's stale flows, also entries of packets that it is about to rescue. These packets go elsewhere all the same.
#[test]
fn connections_do_not_wait_while_flags_come_and_go() -> Result<()> {
    const FLAGS: u64 = 12;
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    let answered = AtomicU64::new(0);
    let reset = AtomicU64::new(0);
    let lapsed = AtomicU64::new(0);
    let connect = |place, stop: &AtomicBool| -> Result<u64> {
        let to = cluster.service(Service::Web, place, Family::V4);
        repeat(stop, || {
            let begun = Instant::now();
            let attempt = Conn::attempt(cluster.at(place), to, LIMIT);
            let at_first = attempt.at_first_syn();
            let mut conn = match attempt.conn {
                Ok(conn) => conn,
                // The connection reached the node before the flag, and was reset before this thread saw it.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    reset.fetch_add(1, Ordering::Relaxed);
                    return Ok(Duration::ZERO);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && lease_lapsed(begun) => {
                    lapsed.fetch_add(1, Ordering::Relaxed);
                    return Ok(Duration::ZERO);
                }
                Err(error) => {
                    let counters = agent.expect(&["counters"]).unwrap_or_default();
                    bail!("a connection, {place:?}: {error}\n{counters}")
                }
            };
            at_first.with_context(|| format!("a connection, {place:?}"))?;
            // A connection that reached the node before the flag is reset. Otherwise the answer shows that the server has accepted it.
            match conn.request() {
                Outcome::Answered => answered.fetch_add(1, Ordering::Relaxed),
                Outcome::Reset => reset.fetch_add(1, Ordering::Relaxed),
                outcome => bail!("a connection, {place:?}: its request: {outcome:?}"),
            };
            Ok(Duration::ZERO)
        })
    };
    let flips = || {
        (0..FLAGS).try_for_each(|_| {
            agent.flag("node-b")?;
            std::thread::sleep(Duration::from_millis(120));
            agent.unflag("node-b")?;
            std::thread::sleep(Duration::from_millis(60));
            Ok(())
        })
    };
    let connect = &connect;
    let clients = [Place::Outside, Place::Pod, Place::Node, Place::Outside]
        .map(|place| move |stop: &AtomicBool| connect(place, stop));
    let (flipped, counts) = under(clients, flips);
    let counts = flipped.and_then(|()| counts.into_iter().collect::<Result<Vec<u64>>>())?;
    let answered = answered.into_inner();
    let reset = reset.into_inner();
    println!(
        "{counts:?} connections, {answered} answered, {reset} reset, {} packets rescued",
        own_counter(&agent, "rescued")?
    );
    // At each flag each client has at most one connection on its way to the node.
    let on_their_way = FLAGS * counts.len() as u64;
    ensure!(reset <= on_their_way && answered > on_their_way, "{answered} answered, {reset} reset");
    excused(answered, lapsed.into_inner())?;
    ensure!(own_counter(&agent, "rescued")? >= FLAGS, "{}", agent.expect(&["counters"])?);
    Ok(())
}

/// A successor that takes over rescues too.
#[test]
fn a_successor_goes_on() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = rescuing(&cluster, &[])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    for _ in 0..2 {
        for _ in 0..20 {
            connect(&cluster, Service::Web, Place::Outside, Family::V4, &cluster.c)?;
        }
        ensure!(own_counter(&agent, "rescued")? > 0, "{}", agent.expect(&["counters"])?);
        agent.restart(&["--take-over"])?;
        rescue_ready(&agent)?;
    }
    Ok(())
}

/// A packet may meet the cut a moment before the last other node is flagged, which makes the packet's backend exempt. The agent tries such a packet again:
/// without that several were refused.
#[test]
fn nobody_is_refused_while_the_last_ones_come_and_go() -> Result<()> {
    const TURNS: u64 = 30;
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    agent.flag("node-b")?;
    let reset = AtomicU64::new(0);
    let connected = AtomicU64::new(0);
    let lapsed = AtomicU64::new(0);
    let was_reset = &reset;
    let was_connected = &connected;
    let was_lapsed = &lapsed;
    let clients = Place::ALL.map(|place| {
        let to = cluster.service(Service::Web, place, Family::V4);
        let ns = cluster.at(place);
        move |stop: &AtomicBool| {
            repeat(stop, || {
                let begun = Instant::now();
                match Conn::connect(ns, to, LIMIT) {
                    Ok(_) => drop(was_connected.fetch_add(1, Ordering::Relaxed)),
                    // The connection reached node B while that was exempt, and was reset before this thread saw it.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                        was_reset.fetch_add(1, Ordering::Relaxed);
                    }
                    // The kernel refused since the lease had lapsed. A refusal by the agent shows in `rescue_nothing_else` below.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused && lease_lapsed(begun) => {
                        was_lapsed.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => bail!("{place:?}: {error}"),
                }
                Ok(Duration::ZERO)
            })
        }
    });
    let flips = || {
        (0..TURNS).try_for_each(|_| -> Result<()> {
            agent.expect(&["flag", "node-c", "--force"])?;
            std::thread::sleep(Duration::from_millis(50));
            agent.unflag("node-c")?;
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        })
    };
    let (flipped, counts) = under(clients, flips);
    flipped?;
    let on_their_way = TURNS * counts.len() as u64;
    for one in counts {
        println!("{}", one.with_context(|| agent.expect(&["counters"]).unwrap_or_default())?);
    }
    // At each turn each client has at most one connection on its way to node B.
    let reset = reset.into_inner();
    let connected = connected.into_inner();
    ensure!(reset <= on_their_way && connected > on_their_way, "{connected} connected, {reset} reset");
    excused(connected, lapsed.into_inner())?;
    ensure!(own_counter(&agent, "rescue_nothing_else")? == 0, "{}", agent.expect(&["counters"])?);
    Ok(())
}
