//! What happens to a flag when the agent dies, hangs, restarts or is replaced.

use std::{
    net::SocketAddr,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Outcome, Place,
    checks::{Case, SOON, reset_by_now},
    client::try_new,
    load::{repeat, steady::Load, under},
    promises::{LAPSED, RENEWED},
    topology::Service,
    watch::wait_within,
};

fn backend(cluster: &Cluster) -> SocketAddr {
    (cluster.b.pod_address(Family::V4), Service::Web.ports().1).into()
}

fn passes(cluster: &Cluster) -> bool {
    try_new(&cluster.a.pod, backend(cluster), Duration::from_secs(1)).0 == Outcome::Answered
}

/// Whether a new connection is refused. A connection that only gets no answer is not cut.
fn is_cut(cluster: &Cluster) -> bool {
    try_new(&cluster.a.pod, backend(cluster), Duration::from_secs(1)).0 == Outcome::Refused
}

fn flagged() -> Result<(Cluster, Agent)> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let mut conn =
        Case { cluster: &cluster, place: Place::Outside, family: Family::V4 }.to_b(Service::Web)?;
    agent.flag("node-b")?;
    reset_by_now(&mut conn)?;
    ensure!(is_cut(&cluster), "a new connection to a flagged node was not refused");
    Ok((cluster, agent))
}

/// Checks that traffic is still cut half a second after `start`, and flows again in the promised time.
fn lapses(cluster: &Cluster, start: Instant) -> Result<()> {
    std::thread::sleep(Duration::from_millis(500));
    ensure!(is_cut(cluster), "not refused although the verdict was renewed less than a second ago");
    wait_within("the agent's end to traffic", LAPSED, start, || passes(cluster))?;
    Case { cluster, place: Place::Outside, family: Family::V6 }.to_b(Service::Web)?;
    Ok(())
}

#[test]
fn a_killed_agents_flags_lapse() -> Result<()> {
    let (cluster, mut agent) = flagged()?;
    let start = Instant::now();
    agent.kill();
    lapses(&cluster, start)
}

#[test]
fn a_stopped_agents_flags_lapse_and_return() -> Result<()> {
    let (cluster, agent) = flagged()?;
    let start = Instant::now();
    agent.proc()?.freeze()?;
    lapses(&cluster, start)?;
    let thawed = Instant::now();
    agent.proc()?.thaw()?;
    wait_within("cut again", RENEWED, thawed, || is_cut(&cluster))?;
    agent.unflag("node-b")?;
    ensure!(passes(&cluster), "node B is cut after the unflag");
    Ok(())
}

#[test]
fn a_terminated_agents_flags_lapse() -> Result<()> {
    let (cluster, mut agent) = flagged()?;
    agent.terminate()?;
    // At its end the agent renews the verdict once more, for its successor.
    lapses(&cluster, Instant::now())
}

/// The outcomes of new connections to the backend.
#[derive(Debug, Default)]
struct Probed {
    passed: u64,
    refused: u64,
    /// Refused connections that were not refused by the answer to their first SYN.
    late: Vec<Error>,
    other: u64,
}

impl Probed {
    /// Connects again and again until `stop`.
    fn until(stop: &AtomicBool, ns: &Netns, to: SocketAddr) -> Result<Self> {
        let mut seen = Self::default();
        repeat(stop, || {
            let start = Instant::now();
            let attempt = Conn::attempt(ns, to, SOON);
            seen.late.extend(attempt.at_first_syn().err());
            match attempt.conn.map_err(|error| Outcome::of(&error)) {
                Ok(_) => seen.passed += 1,
                Err(Outcome::Refused) => seen.refused += 1,
                Err(_) => seen.other += 1,
            }
            // The pause is short enough to see a gap of a few milliseconds. On an emulated processor it leaves time to the agent.
            Ok(start.elapsed().max(Duration::from_millis(1)))
        })?;
        Ok(seen)
    }

    /// Checks that each connection was refused. With `in_place` the kernel answers by itself, so each refusal must answer the first SYN.
    fn were_refused(&self, in_place: bool) -> Result<()> {
        let late = if in_place { &*self.late } else { &[] };
        ensure!(self.passed == 0 && self.other == 0 && late.is_empty(), "{self:?}");
        ensure!(self.refused > 0, "no connection was tried");
        Ok(())
    }
}

/// Checks that while links, programs and maps are taken over, no packet to the flagged node passes, and no packet to another node is lost.
fn without_a_gap(replace: impl FnOnce(&Cluster, &mut Agent) -> Result<()>) -> Result<()> {
    let (cluster, mut agent) = flagged()?;
    let load = Load::on_c(&cluster, Family::V4)?;
    let probe = |stop: &AtomicBool| Probed::until(stop, &cluster.a.pod, backend(&cluster));
    let (done, probed) = under([probe], || {
        std::thread::sleep(Duration::from_millis(200));
        let done = replace(&cluster, &mut agent);
        // The old agent's last renewal has lapsed by then, so the new agent must have adopted the flag.
        std::thread::sleep(LAPSED + Duration::from_millis(500));
        done
    });
    let refused = |probed: Result<Probed>| probed?.were_refused(agent.answers_in_place()?);
    let refused = probed.into_iter().try_for_each(refused);
    load.finish()?;
    done.and(refused).with_context(|| format!("agent's log:\n{}", agent.log()))?;
    agent.unflag("node-b")?;
    ensure!(passes(&cluster), "node B is cut after the unflag");
    Ok(())
}

#[test]
fn a_restart_leaves_no_gap() -> Result<()> {
    without_a_gap(|_, agent| {
        agent.terminate()?;
        agent.restart(&[])
    })
}

#[test]
fn a_crash_and_a_restart_leave_no_gap() -> Result<()> {
    without_a_gap(|_, agent| {
        agent.kill();
        agent.restart(&[])
    })
}

#[test]
fn a_take_over_leaves_no_gap() -> Result<()> {
    without_a_gap(|_, agent| agent.restart(&["--take-over"]))
}

/// The size of a map changes: the agent fills new maps beside the old ones, and then switches the devices.
#[test]
fn a_larger_map_leaves_no_gap() -> Result<()> {
    without_a_gap(|_, agent| {
        agent.terminate()?;
        agent.restart(&["--max-backends", "5000"])
    })
}
