//! The whole of it: the real agent on node A, a node flagged by the real CLI, clients in three places.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Cluster, Conn, Family, Options, Outcome, Overlay, Place,
    checks::{self, Case, Fence as _, SOON},
    client::wait_until,
    load::until_reset::Sending,
    topology::Service,
    watch::{held, moment},
};

/// A flow that sends all the time is reset so soon after somebody asked the agent to flag its node: the verdict is written at once, not with the next renewal.
const CUT: Duration = Duration::from_millis(100);
/// It sends a byte each so long.
const PACE: Duration = Duration::from_millis(1);

fn matrix(options: Options) -> Result<()> {
    checks::matrix(options).map(drop)
}

nodefence_tests::each_topology!(matrix);

/// The devices are found by route lookups.
#[test]
fn interface_auto() -> Result<()> {
    for overlay in [Overlay::HostGateway, Overlay::Vxlan] {
        let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
        let mut agent =
            nodefence_tests::Agent::start(&cluster.a.ns, "node-a", &["auto"], &cluster.cluster_file())?;
        for family in [Family::V4, Family::V6] {
            Case { cluster: &cluster, place: Place::Outside, family }.cut_and_back(&mut agent, true)?;
        }
    }
    Ok(())
}

#[test]
fn a_flag_cuts_a_busy_flow_at_once() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut agent = cluster.agent()?;
    for family in [Family::V4, Family::V6] {
        for _ in 0..5 {
            let conn = Case { cluster: &cluster, place: Place::Outside, family }.to_b(Service::Web)?;
            let busy = Sending::start(conn.stream, PACE, || Ok(()))?;
            wait_until("it sends", SOON, || busy.sent() > 20)?;
            let flagged = agent.flag_now("node-b")?;
            let reset = busy.wait(SOON)?.context("not reset at all")?;
            let took = moment(reset.at).checked_duration_since(flagged).context("reset before the flag")?;
            held("flag to the reset of a busy flow", CUT, flagged, took)?;
            busy.finish()?;
            agent.unflag("node-b")?;
        }
    }
    Ok(())
}

/// Counted, not cut.
#[test]
fn observe() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--mode", "observe"])?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut kept = case.to_b(Service::Web)?;
    agent.flag("node-b")?;
    for _ in 0..20 {
        ensure!(kept.request() == Outcome::Answered, "observe has cut a flow");
    }
    case.to_b(Service::Web).context("observe has cut new flows")?;
    ensure!(agent.counter(Reason::Observed)? >= 20, "not counted");
    ensure!(agent.counter(Reason::Reset)? == 0);
    Ok(())
}

/// The operator chose drop: no answer at all, and nothing reaches the node.
#[test]
fn drop_answers_nothing() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--answer", "drop"])?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let mut kept = case.to_b(Service::Web)?;
    agent.flag("node-b")?;
    kept.limit(Some(Duration::from_millis(700)))?;
    ensure!(kept.request() == Outcome::TimedOut);
    ensure!(agent.counter(Reason::Dropped)? > 0 && agent.counter(Reason::Reset)? == 0);
    agent.unflag("node-b")?;
    // TCP sends again what was dropped.
    kept.limit(Some(Duration::from_secs(10)))?;
    let mut name = [0; 7];
    std::io::Read::read_exact(&mut kept.stream, &mut name).context("the flow goes on where it was")?;
    ensure!(&name == b"node-b\n");
    Ok(())
}

/// A flag on the agent's own node concerns its own backends alone.
#[test]
fn the_own_node_goes_on_to_forward() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let refused = agent.cli(&["flag", "node-a"])?;
    ensure!(!refused.status.success(), "the own node was flagged without --force");
    agent.expect(&["flag", "node-a", "--force"])?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    for name in ["node-b", "node-c"] {
        Conn::connect_to(&cluster.client, to, name, SOON)?;
    }
    Ok(())
}
