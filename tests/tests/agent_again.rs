//! Clients that wait for an answer are reset even if the cut begins after the flag: after a restart, after a change of the cluster file, after a change of routes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Outcome, Place,
    checks::{Case, Fence as _, SOON, reset_at_next_packet},
    client::wait_until,
    promises::{FOLLOWED, FREED},
    topology::Service,
    unlisted,
    watch::within,
};
use serde_json::Value;

/// After this time a client can read the error of its socket.
const READABLE: Duration = Duration::from_millis(50);

/// Clients of node B that wait for an answer. The processes of node B are frozen, so no answer comes.
struct Idle<'a> {
    cluster: &'a Cluster,
    conns: Vec<Conn>,
}

impl<'a> Idle<'a> {
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let mut conns = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut conn = Case { cluster, place: Place::Outside, family }.to_b(Service::Web)?;
            conn.long_poll()?;
            // The kernel deletes a masqueraded entry if a segment leaves by another device than the entry's first segment did (`nf_nat_inet_fn`, nf_nat_core.c).
            conn.settle()?;
            conns.push(conn);
        }
        cluster.b.freeze()?;
        Ok(Self { cluster, conns })
    }

    /// Checks that no client was reset yet.
    fn still_wait(&mut self) -> Result<()> {
        for conn in &mut self.conns {
            let outcome = conn.wait_end(Duration::from_millis(200));
            ensure!(outcome == Outcome::TimedOut, "the client's wait ended too early: {outcome:?}");
        }
        Ok(())
    }

    /// Checks that each client is reset, at the latest `promised` after `began`.
    fn are_reset(&mut self, agent: &Agent, promised: Duration, began: Instant) -> Result<()> {
        for conn in &mut self.conns {
            let outcome = conn.wait_end(SOON);
            ensure!(outcome == Outcome::Reset, "{outcome:?}; the agent's log:\n{}", agent.log());
        }
        let took = within("to the last of two idle clients", promised, began);
        took.map(drop).with_context(|| agent.log())
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        let _thawed = self.cluster.b.thaw();
    }
}

/// What `status` says about the last round of challenges for node B. The value is null before the first round.
fn last_challenge(agent: &Agent) -> Result<Value> {
    Ok(agent.status()?["challenged"]["node-b"].clone())
}

/// The first agent resets no client of the node that it flags. The next agent resets them.
fn reset_by_the_next_agent(first: &[&str]) -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = cluster.agent_with(first)?;
    let mut idle = Idle::new(&cluster)?;
    agent.flag("node-b")?;
    idle.still_wait()?;
    agent.take_over_with(&["--proxy", "auto"])?;
    // A start takes many seconds where the machine is emulated.
    wait_until("the next agent has challenged idle clients", Duration::from_secs(120), || {
        last_challenge(&agent).is_ok_and(|row| row["challenged"].as_u64().is_some_and(|flows| flows >= 2))
    })
    .with_context(|| agent.log())?;
    idle.are_reset(&agent, READABLE, Instant::now())
}

#[test]
fn who_was_only_observed() -> Result<()> {
    reset_by_the_next_agent(&["--mode", "observe"])
}

#[test]
fn who_was_only_dropped() -> Result<()> {
    reset_by_the_next_agent(&["--answer", "drop"])
}

/// The next agent does not challenge the client of a flow that was reset.
#[test]
fn a_restart_challenges_nothing_that_was_reset() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = cluster.agent()?;
    let mut idle = Idle::new(&cluster)?;
    let flagged = agent.flag_now("node-b")?;
    idle.are_reset(&agent, FREED, flagged)?;
    agent.terminate()?;
    agent.restart(&[])?;
    wait_until("the next agent has listed the flows", SOON, || {
        last_challenge(&agent).is_ok_and(|row| !row.is_null())
    })?;
    let row = last_challenge(&agent)?;
    ensure!(row["listed"].as_u64().is_some_and(|listed| listed >= 2) && row["challenged"] == 0, "{row}");
    Ok(())
}

/// The answer to a flag has the number of flows, and does not wait until they are closed.
#[test]
fn a_flag_counts_established_flows() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let mut idle = Idle::new(&cluster)?;
    let report = agent.json(&["flag", "node-b"])?;
    let flagged = Instant::now();
    ensure!(report["established"].as_u64().is_some_and(|flows| flows >= 2), "{report}");
    ensure!(report["challenged"]["challenged"].as_u64().is_some_and(|flows| flows >= 2), "{report}");
    idle.are_reset(&agent, FREED, flagged)
}

/// The cluster file lists the flagged node's pod only after the flag.
#[test]
fn a_backend_that_is_added_to_a_flagged_node() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let whole = cluster.cluster_file();
    let pods = [Family::V4, Family::V6].map(|family| format!("\"{}\"\n", cluster.b.pod_address(family)));
    let without: String =
        whole.split_inclusive('\n').filter(|line| !pods.iter().any(|pod| line.ends_with(pod))).collect();
    ensure!(without != whole, "{whole}");
    let agent = Agent::start(&cluster.a.ns, "node-a", &cluster.interfaces(), &without)?;
    let mut idle = Idle::new(&cluster)?;
    agent.expect(&["flag", "node-b", "--wait"])?;
    idle.still_wait()?;
    let rewritten = Instant::now();
    agent.rewrite_cluster_file(&whole)?;
    idle.are_reset(&agent, FOLLOWED + FREED, rewritten)
}

/// At the time of the flag the backends' routes leave by a device that is not attached. Later they leave by an attached one.
#[test]
fn a_route_that_comes_after_the_flag() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let mut idle = Idle::new(&cluster)?;
    let pods = [(Family::V4, 32), (Family::V6, 128)];
    cluster.a.ns.ip("link add aside0 type veth peer name aside1
         link set aside1 up
         link set aside0 up")?;
    for (family, bits) in pods {
        let pod = cluster.b.pod_address(family);
        cluster.a.ns.ip(&format!("route add {pod}/{bits} dev aside0"))?;
    }
    wait_until("the routes are seen", SOON, || agent.status().is_ok_and(|status| status["uncovered"] == 2))?;
    let report = agent.expect(&["flag", "node-b", "--wait", "-o", "json"])?;
    let report: Value = serde_json::from_str(&report)?;
    ensure!(report["challenged"]["unreachable"].as_u64().is_some_and(|flows| flows >= 2), "{report}");
    idle.still_wait()?;
    let del = |(family, bits)| format!("route del {}/{bits} dev aside0\n", cluster.b.pod_address(family));
    let came = Instant::now();
    cluster.a.ns.ip(&pods.map(del).concat())?;
    idle.are_reset(&agent, FREED, came)
}

/// The flagged node's link is down when the agent ends, and stays down. The next agent resets the clients all the same.
#[test]
fn held_neighbours_outlive_the_agent() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    for family in ["ipv4", "ipv6"] {
        // The kernel picks a random time between half of this value and one and a half times this value: one to three minutes.
        cluster.a.ns.sysctl(&format!("{family}/neigh/eth0/base_reachable_time_ms"), "120000")?;
    }
    let mut agent = cluster.agent()?;
    let mut conns = Vec::new();
    for family in [Family::V4, Family::V6] {
        conns.push(unlisted::to_b(&cluster, family)?);
    }
    agent.flag("node-b")?;
    let reachable = || -> Result<bool> {
        let shown = cluster.a.ns.exec("ip neigh show nud reachable")?;
        let held = |family| shown.contains(&format!("{} dev eth0 ", cluster.b.address(family)));
        Ok(held(Family::V4) && held(Family::V6))
    };
    wait_until("the neighbour entries are held", SOON, || reachable().is_ok_and(|held| held))?;
    cluster.fabric.ip("link set p2 down")?;
    agent.terminate()?;
    ensure!(reachable()?, "{}", cluster.a.ns.exec("ip neigh")?);
    agent.restart(&[])?;
    for conn in &mut conns {
        reset_at_next_packet(conn).with_context(|| agent.log())?;
    }
    // An agent releases at the unflag only entries that it holds itself.
    let held = || -> Result<usize> {
        let status = agent.status()?;
        let rows = status["neighbours"].as_array().context("no neighbours")?;
        Ok(rows.iter().filter(|row| row["state"] == "held").count())
    };
    wait_until("the next agent holds the neighbour entries", SOON, || held().is_ok_and(|held| held == 2))?;
    agent.unflag("node-b")?;
    wait_until("the unflag has released the neighbour entries", SOON, || reachable().is_ok_and(|held| !held))
        .map(drop)
}
