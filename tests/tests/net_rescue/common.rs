//! An agent that rescues, and checks of its clients.
use std::{
    io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Outcome, Place,
    client::wait_until,
    topology::{Node, Service},
    watch::{longest_gap, missed},
};

pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// The length of rescue's lease. The agent looks at the lease every 50 ms, and renews it if less than 150 ms are left.
const LEASE: Duration = Duration::from_millis(200);
/// The shortest stand-still of the agent after which the lease may have lapsed.
const LEASE_LEFT: Duration = Duration::from_millis(100);
pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

pub(crate) fn agent(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let extra = [&["--proxy", "auto"], extra].concat();
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &cluster.services_file(), &extra)
}

/// The value of a counter that the agent itself has.
pub(crate) fn own_counter(agent: &Agent, name: &str) -> Result<u64> {
    let list = agent.json(&["counters"])?;
    let row = list["items"].as_array().and_then(|rows| rows.iter().find(|row| row["reason"] == name));
    row.and_then(|row| row["packets"].as_u64()).with_context(|| format!("no counter {name}"))
}

pub(crate) fn rescue_ready(agent: &Agent) -> Result<()> {
    let ready = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("an agent that rescues", LIMIT, ready).map(drop).with_context(|| agent.log())
}

/// Starts an agent, and waits until it rescues.
pub(crate) fn rescuing(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let agent = agent(cluster, extra)?;
    rescue_ready(&agent)?;
    Ok(agent)
}

/// Whether the machine stood still for so long, shortly before `began` or since, that the agent's lease may have lapsed. The kernel refuses then.
pub(crate) fn lease_lapsed(began: Instant) -> bool {
    longest_gap(began.checked_sub(LEASE).unwrap_or(began)) >= LEASE_LEFT
}

/// The name of the node that answered. A refusal counts as a missed bound if the lease may have lapsed since `began`, so that the runner runs the test again.
/// No other outcome is excused.
pub(crate) fn answered_by(began: Instant, answer: io::Result<String>) -> Result<String> {
    answer.map_err(|error| match Outcome::of(&error) {
        Outcome::Refused if lease_lapsed(began) => {
            missed(LEASE_LEFT, format!("{error}; the lease may have lapsed"))
        }
        outcome => anyhow!("{outcome:?}: {error}"),
    })
}

/// Checks that at most a quarter as many clients were refused, while the lease may have lapsed, as were served.
pub(crate) fn excused(served: u64, refused: u64) -> Result<()> {
    let text = format!("{refused} refused while the lease may have lapsed, {served} served");
    println!("{text}");
    ensure!(refused * 4 <= served, text);
    Ok(())
}

/// Checks that no packet came to the agent too late. A late packet counts as a missed bound if the lease may have lapsed since `began`, so that the runner runs
/// the test again.
pub(crate) fn none_was_late(began: Instant, late: u64) -> Result<()> {
    let text = format!("{late} packets came to the agent too late");
    match late {
        0 => Ok(()),
        _ if lease_lapsed(began) => Err(missed(LEASE_LEFT, text)),
        _ => bail!(text),
    }
}

/// Makes a new connection, which the answer to its first SYN must open, and whose server must be `name`. Gives the time that the connect took.
pub(crate) fn connect(
    cluster: &Cluster,
    service: Service,
    place: Place,
    family: Family,
    name: &Node,
) -> Result<Duration> {
    let began = Instant::now();
    let to = cluster.service(service, place, family);
    let attempt = Conn::attempt(cluster.at(place), to, LIMIT);
    attempt.at_first_syn()?;
    let took = attempt.took;
    let who = answered_by(began, attempt.conn.and_then(|mut conn| conn.who()))
        .with_context(|| format!("connected after {took:?}"))?;
    ensure!(who == name.name, "answered by {who}");
    Ok(took)
}
