//! An agent that rescues, and clients that see it.
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
/// The agent renews its lease of 200 ms at every beat of 50 ms where less than 150 are left: 100 ms at the least go by before it lapses.
const LEASE: Duration = Duration::from_millis(200);
const LEASE_LEFT: Duration = Duration::from_millis(100);
pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

pub(crate) fn agent(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let extra = [&["--proxy", "auto"], extra].concat();
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &cluster.services_file(), &extra)
}

/// A counter of the agent's own.
pub(crate) fn own_counter(agent: &Agent, name: &str) -> Result<u64> {
    let list = agent.json(&["counters"])?;
    let row = list["items"].as_array().and_then(|rows| rows.iter().find(|row| row["reason"] == name));
    row.and_then(|row| row["packets"].as_u64()).with_context(|| format!("no counter {name}"))
}

pub(crate) fn rescue_ready(agent: &Agent) -> Result<()> {
    let ready = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("an agent that rescues", LIMIT, ready).map(drop).with_context(|| agent.log())
}

/// An agent that rescues by now.
pub(crate) fn rescuing(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let agent = agent(cluster, extra)?;
    rescue_ready(&agent)?;
    Ok(agent)
}

/// Whether the machine stood still at once, shortly before `began` or since, for as long as it takes the agent's lease to lapse: then the kernel refuses.
pub(crate) fn lease_lapsed(began: Instant) -> bool {
    longest_gap(began.checked_sub(LEASE).unwrap_or(began)) >= LEASE_LEFT
}

/// Whose answer came. A refusal is run again where the lease may have lapsed since `began`; nothing else is excused by that.
pub(crate) fn answered_by(began: Instant, answer: io::Result<String>) -> Result<String> {
    answer.map_err(|error| match Outcome::of(&error) {
        Outcome::Refused if lease_lapsed(began) => {
            missed(LEASE_LEFT, format!("{error}; the lease may have lapsed"))
        }
        outcome => anyhow!("{outcome:?}: {error}"),
    })
}

/// Checks that few of many clients were refused because the lease may have lapsed.
pub(crate) fn excused(served: u64, refused: u64) -> Result<()> {
    let text = format!("{refused} refused while the lease may have lapsed, {served} served");
    println!("{text}");
    ensure!(refused * 4 <= served, text);
    Ok(())
}

/// Checks that no packet came to the agent too late. The test is run again where the lease may have lapsed since `began`.
pub(crate) fn none_was_late(began: Instant, late: u64) -> Result<()> {
    let text = format!("{late} packets came to the agent too late");
    match late {
        0 => Ok(()),
        _ if lease_lapsed(began) => Err(missed(LEASE_LEFT, text)),
        _ => bail!(text),
    }
}

/// One new connection, which must be answered by `name`, and its first SYN.
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
