//! Clients that use a Service through a real kube-proxy on node A while node B hangs, or A itself.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{ScopedJoinHandle, scope, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_common::Reason;

use super::{Beside, Mode, own};
use crate::{
    Conn, Family, Netns, Node, Options, Outcome, Overlay, Place,
    client::{UdpConn, wait_until},
    emulated, tcp_info,
    topology::{NODE_PORT_OF_ITS_OWN, Service},
};

/// Clients that keep their connections.
const CLIENTS: usize = 40;
/// How often there is a new connection: ten a second.
const NEW: Duration = Duration::from_millis(100);
/// From the moment when the node's processes stand still to its flag.
const UNNOTICED: Duration = Duration::from_millis(300);
/// How long everything is watched after the flag.
const AFTER: Duration = Duration::from_secs(4);
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(8);
/// How often each of them asks. An emulated processor is not to be busy with them alone.
fn each() -> Duration {
    Duration::from_millis(if emulated() { 200 } else { 25 })
}

/// How long a client may wait after the flag.
fn stall() -> Duration {
    Duration::from_secs(if emulated() { 3 } else { 1 })
}

/// What becomes of clients, while somebody flags a node.
struct Watched<'a> {
    ns: &'a Netns,
    to: std::net::SocketAddr,
    over: AtomicBool,
    flagged: OnceLock<Instant>,
}

/// One new connection and one request on it.
struct New {
    begun: Instant,
    took: Duration,
    outcome: Outcome,
    who: String,
    /// Segments that it sent again until it was there.
    again: u32,
}

impl Watched<'_> {
    fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// A client that keeps its connection: when it is reset it makes a new one at once and asks again. Gives the longest that it waited for an answer
    /// after the flag, and how often it was reset.
    fn keeps_alive(&self) -> Result<(Duration, u32)> {
        let mut conn = Conn::connect(self.ns, self.to, LIMIT)?;
        let (mut longest, mut resets) = (Duration::ZERO, 0);
        while !self.over() {
            let begun = Instant::now();
            while let Err(error) = conn.who() {
                ensure!(Outcome::of(&error) == Outcome::Reset, "a request ended with {error}");
                resets += 1;
                conn = Conn::connect(self.ns, self.to, LIMIT).context("connect again")?;
            }
            if let Some(flagged) = self.flagged.get() {
                longest = longest.max(begun.max(*flagged).elapsed());
            }
            sleep(each());
        }
        Ok((longest, resets))
    }

    fn new_connection(&self) -> New {
        let begun = Instant::now();
        let mut again = 0;
        let result = Conn::connect(self.ns, self.to, LIMIT).and_then(|mut conn| {
            again = tcp_info::retransmitted(&conn.stream)?;
            conn.who()
        });
        let outcome = result.as_ref().map_or_else(Outcome::of, |_| Outcome::Answered);
        New { begun, took: begun.elapsed(), outcome, who: result.unwrap_or_default(), again }
    }

    fn new_connections(&self) -> Result<Vec<New>> {
        // Each waits for itself.
        scope(|scope| {
            let mut running = Vec::new();
            while !self.over() {
                running.push(scope.spawn(|| self.new_connection()));
                sleep(NEW);
            }
            running.into_iter().map(joined).collect()
        })
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().ok().context("a thread panicked")
}

/// Sends [`CLIENTS`] clients from `place`, hangs a node, and holds against it what they have seen. `live` is the other one that has endpoints.
fn hangs(
    beside: &Beside,
    place: Place,
    hung: &Node,
    live: &Node,
    flag: impl Fn() -> Result<()>,
) -> Result<()> {
    let cluster = &beside.cluster;
    let watched = Watched {
        ns: cluster.at(place),
        to: cluster.service(Service::Web, place, Family::V4),
        over: AtomicBool::new(false),
        flagged: OnceLock::new(),
    };
    let (flagged, clients, new) = scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| watched.keeps_alive())).collect();
        let new = scope.spawn(|| watched.new_connections());
        let hang = || -> Result<Instant> {
            sleep(Duration::from_millis(700));
            hung.freeze()?;
            sleep(UNNOTICED);
            watched.flagged.get_or_init(Instant::now);
            flag()?;
            let flagged = Instant::now();
            sleep(AFTER);
            Ok(flagged)
        };
        let flagged = hang();
        watched.over.store(true, Ordering::Relaxed);
        let clients: Vec<_> = clients.into_iter().map(joined).collect();
        (flagged, clients, joined(new))
    });
    let flagged = flagged?;
    let (mut longest, mut resets) = (Duration::ZERO, 0);
    for (at, client) in clients.into_iter().enumerate() {
        let (waited, reset) = client?.with_context(|| format!("client {at}"))?;
        (longest, resets) = (longest.max(waited), resets + reset);
    }
    let new = new??;
    let (after, before): (Vec<&New>, Vec<&New>) = new.iter().partition(|one| one.begun >= flagged);
    let slowest = after.iter().map(|one| one.took).max().unwrap_or_default();
    println!(
        "{}, {place:?}, {} hangs: {resets} of {CLIENTS} clients reset, waited {longest:?} after the flag at most; {} new connections after it, the slowest \
         took {slowest:?}",
        beside.proxy.mode,
        hung.name,
        after.len()
    );
    ensure!(longest <= stall(), "a client waited {longest:?}");
    // Half of them are there, give or take three (one standard deviation).
    ensure!(resets >= 5, "{resets} clients were reset: {} was not picked", hung.name);
    for one in before {
        let seen = one.outcome == Outcome::Answered || one.outcome == Outcome::Reset;
        ensure!(seen && one.begun + one.took <= flagged + stall(), "{} before the flag", one.text(flagged));
    }
    ensure!(after.len() >= 10, "{} new connections", after.len());
    for one in after {
        let sound = one.outcome == Outcome::Answered && one.who == live.name && one.again == 0;
        ensure!(sound && (emulated() || one.took < Duration::from_millis(900)), "{}", one.text(flagged));
    }
    Ok(())
}

impl New {
    fn text(&self, flagged: Instant) -> String {
        let Self { begun, took, outcome, who, again } = self;
        let (early, late) =
            (flagged.saturating_duration_since(*begun), begun.saturating_duration_since(flagged));
        format!(
            "new connection {late:?} after the flag ({early:?} before): {outcome:?} by `{who}`, {took:?}, {again} segments again"
        )
    }
}

/// The node is well again, and clients are sent there.
fn recovers(beside: &Beside, hung: &Node) -> Result<()> {
    let cluster = &beside.cluster;
    hung.thaw()?;
    beside.agent.expect(&["unflag", hung.name])?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    Conn::connect_to(&cluster.client, to, hung.name, LIMIT).context("the node is well again").map(drop)
}

/// Waits for an agent that rescues.
pub(super) fn rescues(beside: &Beside) -> Result<()> {
    let idle = || beside.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("an agent that rescues", LIMIT, idle).map(drop).with_context(|| beside.agent.log())
}

fn told(beside: &Beside, place: Place) -> String {
    let counters = beside.agent.expect(&["counters"]).unwrap_or_default();
    format!("{}, client: {place:?}\n{counters}\n{}", beside.proxy.mode, beside.agent.log())
}

/// What `status` says of own sockets once a client in the host network has met the cut. Where kube-proxy goes on to list the
/// hung endpoint, those of [`hangs`] have.
fn own_sockets(beside: &Beside, service: Service, hung: &Node, live: &Node) -> Result<()> {
    if beside.proxy.mode != Mode::Ipvs {
        own::says(beside, own::BALANCED).with_context(|| told(beside, Place::Node))?;
    }
    own::is_balanced(beside, service, hung, live).with_context(|| told(beside, Place::Node))
}

/// Whether clients go on where kube-proxy goes on to list the hung endpoints: no established one waits for long after the flag, no new connection fails
/// or waits for its SYN to be sent again.
///
/// # Errors
/// Where it is not so.
pub fn clients_go_on(mode: Mode) -> Result<()> {
    let beside = Beside::new(mode, false, &[])?;
    rescues(&beside)?;
    let (b, c) = (&beside.cluster.b, &beside.cluster.c);
    for place in Place::ALL {
        // Nobody else in the host network uses the Service: what is said of own sockets, this client has shown.
        own::says(&beside, own::NOT_TRIED).with_context(|| told(&beside, place))?;
        hangs(&beside, place, b, c, || beside.agent.flag(b.name)).with_context(|| told(&beside, place))?;
        if place == Place::Node {
            own_sockets(&beside, Service::Web, b, c)?;
        }
        recovers(&beside, b)?;
    }
    Ok(())
}

/// Whether clients that enter through a node whose own pods hang go on, while the agent there lives: what the rules send to these pods goes elsewhere. What the
/// node itself sends straight to them still gets there, as the kubelet's probes do.
///
/// # Errors
/// Where it is not so.
pub fn clients_of_the_hung_node_go_on(mode: Mode) -> Result<()> {
    let mut beside = Beside::new(mode, false, &["--interface", "auto"])?;
    beside.cluster.serve_on_a()?;
    rescues(&beside)?;
    let (a, c) = (&beside.cluster.a, &beside.cluster.c);
    beside.set_endpoints(&[a, c])?;
    let to = beside.cluster.service(Service::Web, Place::Outside, Family::V4);
    wait_until("kube-proxy and the agent follow", Duration::from_secs(60), || {
        let names = (0..20).map(|_| Conn::connect(&beside.cluster.client, to, LIMIT)?.who());
        let names: std::io::Result<Vec<String>> = names.collect();
        let known = beside.agent.expect(&["backends"]).is_ok_and(|text| text.contains("10.244.1.2"));
        known && names.is_ok_and(|names| names.iter().all(|name| name != beside.cluster.b.name))
    })?;
    let by_command = || beside.agent.expect(&["flag", a.name, "--force"]).map(drop);
    let by_file = || {
        beside.flag_in_file(&[a, c], &[a])?;
        wait_until("its pods are cut off", LIMIT, || {
            let rows = beside
                .agent
                .expect(&["backends", "-o", "json"])
                .and_then(|text| Ok(serde_json::from_str(&text)?));
            let rows: Vec<serde_json::Value> = rows.unwrap_or_default();
            let its = rows.iter().filter(|row| row["node"] == a.name && row["port"].is_null());
            let cut: Vec<bool> =
                its.map(|row| row["flagged"] == true && row["interface"].is_string()).collect();
            !cut.is_empty() && cut.iter().all(|cut| *cut)
        })
        .map(drop)
    };
    for (place, flag) in [(Place::Outside, &by_command as &dyn Fn() -> Result<()>), (Place::Node, &by_file)] {
        own::says(&beside, own::NOT_TRIED).with_context(|| told(&beside, place))?;
        hangs(&beside, place, a, c, flag).with_context(|| told(&beside, place))?;
        if place == Place::Node {
            own_sockets(&beside, Service::Web, a, c)?;
        }
        let pod = (a.pod_address(Family::V4), Service::Web.ports().1).into();
        Conn::connect(&a.ns, pod, LIMIT).context("a probe of the kubelet's")?;
        ensure!(beside.agent.counter(Reason::OwnSocket)? > 0, "{}", told(&beside, place));
        let Err(error) = Conn::connect(&beside.cluster.c.ns, pod, LIMIT) else {
            bail!("a pod of the flagged node was reached from elsewhere")
        };
        ensure!(Outcome::of(&error) == Outcome::Refused, "{error}");
        beside.flag_in_file(&[a, c], &[])?;
        recovers(&beside, a)?;
    }
    Ok(())
}

/// Whether a client that asks over UDP from one port is answered by a live backend at its next query.
///
/// # Errors
/// Where it is not so.
pub fn the_next_query_is_answered(mode: Mode) -> Result<()> {
    let beside = Beside::new(mode, false, &[])?;
    rescues(&beside)?;
    let cluster = &beside.cluster;
    for place in Place::ALL {
        let to = cluster.service(Service::Dns, place, Family::V4);
        let mut conns = Vec::new();
        for _ in 0..10 {
            conns.push(UdpConn::connect_to(cluster.at(place), to, cluster.b.name, LIMIT)?);
        }
        cluster.b.freeze()?;
        beside.agent.flag(cluster.b.name)?;
        let mut longest = Duration::ZERO;
        for (at, conn) in conns.iter().enumerate() {
            let begun = Instant::now();
            let who = conn.who().with_context(|| format!("query {at}\n{}", told(&beside, place)))?;
            ensure!(who == cluster.c.name, "{place:?}: query {at} was answered by {who}");
            longest = longest.max(begun.elapsed());
        }
        println!("{mode}, {place:?}: the next queries were answered within {longest:?}");
        if place == Place::Node {
            own::is_balanced(&beside, Service::Dns, &cluster.b, &cluster.c)
                .with_context(|| told(&beside, place))?;
        }
        recovers(&beside, &cluster.b)?;
    }
    Ok(())
}

/// Whether what else goes to a flagged node's address goes on: a port that is no backend (as ssh's or the kubelet's), and VXLAN.
///
/// # Errors
/// Where it is not so.
pub fn other_ports_go_on(mode: Mode) -> Result<()> {
    let beside = Beside::with(Options { overlay: Overlay::Vxlan, ..Options::default() }, mode, false, &[])?;
    rescues(&beside)?;
    let cluster = &beside.cluster;
    // No backend, behind the tunnel to B.
    cluster.b.pod.ip("addr add 10.244.2.77/24 dev eth0")?;
    let ways = [
        (Place::Node, (cluster.b.address(Family::V4), NODE_PORT_OF_ITS_OWN)),
        (Place::Pod, ([10, 244, 2, 77].into(), 8080)),
    ];
    let over = AtomicBool::new(false);
    let (result, counts) = scope(|scope| {
        let over = &over;
        let uses = move |place, to: (std::net::IpAddr, u16)| -> Result<u32> {
            let ns = cluster.at(place);
            let mut kept = Conn::connect(ns, to.into(), LIMIT)?;
            // The first one finds out how much fits through the tunnel.
            kept.echo(&[7; 3_000])?;
            let before = tcp_info::retransmitted(&kept.stream)?;
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                kept.echo(&[7; 3_000]).with_context(|| format!("exchange {count}"))?;
                let mut new = Conn::connect(ns, to.into(), LIMIT)?;
                ensure!(tcp_info::retransmitted(&new.stream)? == 0, "connection {count} was sent again");
                new.who()?;
                count += 1;
                sleep(Duration::from_millis(10));
            }
            ensure!(tcp_info::retransmitted(&kept.stream)? == before || emulated(), "segments were lost");
            Ok(count)
        };
        let users = ways.map(|(place, to)| (to, scope.spawn(move || uses(place, to))));
        let flagged = || -> Result<()> {
            sleep(Duration::from_millis(300));
            beside.agent.expect(&["flag", cluster.b.name, "--wait"])?;
            let to = cluster.service(Service::Host, Place::Outside, Family::V4);
            for _ in 0..40 {
                let mut conn = Conn::connect(&cluster.client, to, LIMIT)?;
                let who = conn.who()?;
                ensure!(who == cluster.c.name, "{who} answered");
            }
            let direct = (cluster.b.address(Family::V4), Service::Host.ports().1).into();
            let Err(error) = Conn::connect(&cluster.a.ns, direct, LIMIT) else {
                bail!("the backend of the flagged node was reached")
            };
            ensure!(Outcome::of(&error) == Outcome::Refused, "{error}");
            sleep(Duration::from_secs(2));
            Ok(())
        };
        let result = flagged();
        over.store(true, Ordering::Relaxed);
        (result, users.map(|(to, thread)| (to, joined(thread))))
    });
    result.with_context(|| told(&beside, Place::Outside))?;
    for (to, count) in counts {
        let count = count?.with_context(|| format!("{to:?}\n{}", told(&beside, Place::Outside)))?;
        println!("{mode}: {count} exchanges and as many connections to {to:?}");
        ensure!(count >= 10, "{count} exchanges with {to:?}");
    }
    Ok(())
}
