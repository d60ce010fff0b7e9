//! An agent that rescues, and clients that see it.
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Family, Outcome, Place,
    client::{try_new, wait_until},
    topology::{Node, Service},
};
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// TCP sends a SYN again after a second (RFC 6298): what took less did not wait for it.
pub(crate) const NO_RETRANSMIT: Duration = Duration::from_millis(900);
pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

pub(crate) fn agent(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let extra = [&["--proxy", "auto"], extra].concat();
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &cluster.services_file(), &extra)
}

/// A counter of the agent's own.
pub(crate) fn own_counter(agent: &Agent, name: &str) -> Result<u64> {
    let rows: Vec<Value> = serde_json::from_str(&agent.expect(&["counters", "-o", "json"])?)?;
    let row = rows.iter().find(|row| row["reason"] == name);
    row.and_then(|row| row["packets"].as_u64()).with_context(|| format!("no counter {name}"))
}

pub(crate) fn armed(agent: &Agent) -> Result<()> {
    let ready = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("an agent that rescues", LIMIT, ready).map(drop).with_context(|| agent.log())
}

/// An agent that rescues by now.
pub(crate) fn rescuing(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let agent = agent(cluster, extra)?;
    armed(&agent)?;
    Ok(agent)
}

/// One new connection, which must be answered by `name` in time.
pub(crate) fn connect(
    cluster: &Cluster,
    service: Service,
    place: Place,
    family: Family,
    name: &Node,
) -> Result<Duration> {
    let to = cluster.service(service, place, family);
    let begun = Instant::now();
    let (outcome, who) = try_new(cluster.at(place), to, LIMIT);
    let took = begun.elapsed();
    ensure!(outcome == Outcome::Answered, "{outcome:?} after {took:?}");
    ensure!(who.as_deref() == Some(name.name), "answered by {who:?}");
    ensure!(took < NO_RETRANSMIT, "took {took:?}");
    Ok(took)
}
