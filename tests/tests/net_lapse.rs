//! The dead man's hand: what becomes of a flag when the agent dies, hangs, restarts or is replaced.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Outcome, Place,
    checks::{Case, Load, SOON, reset_at_next_packet},
    client::{try_new, wait_until},
    emulated,
    topology::Service,
};

/// A verdict holds for 3 s after the agent last renewed it; the rest is for the look at it, on an emulated machine for its
/// standing still.
fn lapsed() -> Duration {
    Duration::from_millis(if emulated() { 4_500 } else { 3_500 })
}

fn backend(cluster: &Cluster) -> SocketAddr {
    (cluster.b.pod_address(Family::V4), Service::Web.ports().1).into()
}

fn passes(cluster: &Cluster) -> bool {
    try_new(&cluster.a.pod, backend(cluster), Duration::from_secs(1)).0 == Outcome::Answered
}

fn flagged() -> Result<(Cluster, Agent)> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let mut kept =
        Case { cluster: &cluster, place: Place::Outside, family: Family::V4 }.to_b(Service::Web)?;
    agent.flag("node-b")?;
    reset_at_next_packet(&mut kept)?;
    ensure!(!passes(&cluster), "a new connection passed to a flagged node");
    Ok((cluster, agent))
}

/// How long after `start` traffic flows again; it must still be cut half a second after.
fn lapses(cluster: &Cluster, start: Instant) -> Result<()> {
    std::thread::sleep(Duration::from_millis(500));
    ensure!(!passes(cluster), "passed although the verdict was renewed less than a second ago");
    wait_until("traffic flows again", lapsed().saturating_sub(start.elapsed()), || passes(cluster))?;
    println!("traffic flows again after {:?}", start.elapsed());
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
    agent.proc()?.thaw()?;
    wait_until("cut again", SOON, || !passes(&cluster))?;
    agent.unflag("node-b")?;
    ensure!(passes(&cluster), "cut after the flag was taken back");
    Ok(())
}

#[test]
fn a_terminated_agents_flags_lapse() -> Result<()> {
    let (cluster, mut agent) = flagged()?;
    let start = Instant::now();
    agent.terminate()?;
    lapses(&cluster, start)
}

/// Opens connections to the backend over and over and counts how each went.
struct Prober {
    stop: Arc<AtomicBool>,
    passed: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    other: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    fn start(ns: &Arc<Netns>, to: SocketAddr) -> Self {
        let (stop, ns) = (Arc::new(AtomicBool::new(false)), Arc::clone(ns));
        let counters: [Arc<AtomicU64>; 3] = Default::default();
        let [passed, refused, other] = counters.clone();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                let counter = match Conn::connect(&ns, to, SOON).map_err(|error| Outcome::of(&error)) {
                    Ok(_) => &passed,
                    Err(Outcome::Refused) => &refused,
                    Err(_) => &other,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                // A hole of a few milliseconds is seen; on an emulated processor the agent gets its share.
                std::thread::sleep(start.elapsed().max(Duration::from_millis(1)));
            }
        });
        let [passed, refused, other] = counters;
        Self { stop, passed, refused, other, thread: Some(thread) }
    }

    fn finish(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            bail!("the prober panicked");
        }
        let counts =
            [&self.passed, &self.refused, &self.other].map(|counter| counter.load(Ordering::Relaxed));
        let [passed, refused, other] = counts;
        ensure!(
            passed == 0 && other == 0,
            "passed {passed}, refused {refused}, no answer or another error {other}"
        );
        ensure!(refused > 0, "the prober got nowhere");
        Ok(refused)
    }
}

/// While links, programs and maps are taken over, no packet to the flagged node passes and none to another is lost.
fn without_a_gap(replace: impl FnOnce(&Cluster, &mut Agent) -> Result<()>) -> Result<()> {
    let (cluster, mut agent) = flagged()?;
    let load = Load::on_c(&cluster, Family::V4)?;
    let prober = Prober::start(&cluster.a.pod, backend(&cluster));
    std::thread::sleep(Duration::from_millis(200));
    let done = replace(&cluster, &mut agent);
    // Past the end of what the old agent renewed last: the new one must have adopted the flag.
    std::thread::sleep(lapsed());
    let refused = prober.finish();
    load.finish()?;
    done.and(refused).with_context(|| format!("agent's log:\n{}", agent.log()))?;
    agent.unflag("node-b")?;
    ensure!(passes(&cluster), "cut after the flag was taken back");
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

/// A changed map size: everything is filled aside and switched.
#[test]
fn a_larger_map_leaves_no_gap() -> Result<()> {
    without_a_gap(|_, agent| {
        agent.terminate()?;
        agent.restart(&["--max-backends", "5000"])
    })
}
