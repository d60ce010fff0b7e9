//! New connections after the agent that rescues them was stopped, was killed or has ended.
use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Place,
    topology::Service,
    watch::{bounded, figure, longest_gap},
};

use super::common::{LIMIT, connect, own_counter, rescuing};

/// The promised time for a connect. A SYN that was handed over just before the agent stopped waits only for its repetition a second later.
const LONGEST: Duration = Duration::from_millis(1_200);
/// A SYN without an answer is sent again after this long (RFC 6298 section 2.1).
const REPETITION: Duration = Duration::from_secs(1);
/// How long the clients make new connections. The verdict itself may lapse 2 s after the stop, since the agent renews it each second.
const MAKING: Duration = Duration::from_millis(700);
/// When the clients of each place begin. Some begin before the lease lapses, others after it.
const BEGIN: [Duration; 4] =
    [Duration::ZERO, Duration::ZERO, Duration::from_millis(300), Duration::from_millis(300)];

/// New connections that were refused.
#[derive(Default)]
struct Seen {
    /// Refused by the answer to the first SYN.
    at_once: usize,
    /// Refused by the answer to a later SYN.
    repeated: usize,
}

/// Connects again and again from the call of `stop` on. Each connect must end within [`LONGEST`].
fn from_the_stop_on(cluster: &Cluster, stop: impl FnOnce() -> Result<()>) -> Result<Seen> {
    let until = Instant::now() + MAKING;
    let client = |place, begin| -> Result<(Seen, Duration)> {
        std::thread::sleep(begin);
        let to = cluster.service(Service::Web, place, Family::V4);
        let mut seen = Seen::default();
        let mut longest = Duration::ZERO;
        while Instant::now() < until {
            let began = Instant::now();
            let attempt = Conn::attempt(cluster.at(place), to, LIMIT);
            bounded("a connect from the agent's stop on", LONGEST, began, attempt.took)
                .with_context(|| format!("{place:?}: {:?}", attempt.conn.as_ref().map(drop)))?;
            longest = longest.max(attempt.took);
            match attempt.conn.map_err(|error| error.kind()) {
                // The hung node's kernel answers SYNs too, so the name is read.
                Ok(mut conn) => {
                    let who = conn.who();
                    ensure!(who.as_ref().is_ok_and(|who| who == cluster.c.name), "{place:?}: {who:?}");
                }
                Err(ErrorKind::ConnectionRefused) if attempt.again == 0 => seen.at_once += 1,
                Err(ErrorKind::ConnectionRefused) => seen.repeated += 1,
                Err(other) => bail!("{place:?}: {other}"),
            }
            // The pause lets the servers accept: a server whose queue is full drops SYNs too.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok((seen, longest))
    };
    let all: Vec<_> = std::thread::scope(|scope| -> Result<_> {
        let client = &client;
        let all = Place::ALL.into_iter().flat_map(|place| BEGIN.map(|begin| (place, begin)));
        let clients: Vec<_> = all.map(|(place, begin)| scope.spawn(move || client(place, begin))).collect();
        stop()?;
        clients.into_iter().map(|client| client.join().ok().context("a client panicked")?).collect()
    })?;
    let mut seen = Seen::default();
    let mut longest = Duration::ZERO;
    for (one, took) in all {
        seen.at_once += one.at_once;
        seen.repeated += one.repeated;
        longest = longest.max(took);
    }
    figure("longest connect from the agent's stop on", longest.as_secs_f64() * 1e3, "ms");
    Ok(seen)
}

fn hung() -> Result<(Cluster, Agent)> {
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    Ok((cluster, agent))
}

/// Once rescue's lease has lapsed the kernel refuses. The agent rescues again when it is resumed.
#[test]
fn a_stopped_agent_makes_no_connect_hang() -> Result<()> {
    let (cluster, agent) = hung()?;
    let seen = from_the_stop_on(&cluster, || agent.proc()?.freeze())?;
    agent.proc()?.thaw()?;
    ensure!(seen.at_once > 5, "{} were refused at once", seen.at_once);
    ensure!(seen.repeated > 0, "no SYN was handed to the agent that had just stopped");
    std::thread::sleep(Duration::from_millis(500));
    // Packets that were handed to the stopped agent are too old by now, and are dropped.
    ensure!(own_counter(&agent, "rescue_late")? > 0, "{}", agent.expect(&["counters"])?);
    for _ in 0..30 {
        connect(&cluster, Service::Web, Place::Outside, Family::V4, &cluster.c)?;
    }
    Ok(())
}

#[test]
fn a_killed_agent_makes_no_connect_hang() -> Result<()> {
    let (cluster, mut agent) = hung()?;
    let seen = from_the_stop_on(&cluster, || {
        agent.kill();
        Ok(())
    })?;
    ensure!(seen.at_once > 5, "{} were refused at once", seen.at_once);
    ensure!(seen.repeated > 0, "no SYN was handed to the agent that had just died");
    Ok(())
}

/// An agent that ends gives back rescue's lease first, so the kernel refuses at once.
#[test]
fn an_agent_that_ends_lets_nobody_wait() -> Result<()> {
    let (cluster, mut agent) = hung()?;
    let began = Instant::now();
    let seen = from_the_stop_on(&cluster, || agent.terminate())?;
    ensure!(seen.at_once > 5, "{} were refused at once", seen.at_once);
    ensure!(
        seen.repeated == 0 || longest_gap(began) > REPETITION,
        "{} waited for their SYN's repetition",
        seen.repeated
    );
    Ok(())
}
