//! A drain does not outlive the lease, also if the agent dies or stands still.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nodefence_tests::{Agent, Cluster, client::wait_until, promises::RESTORED, traced::Still};

use super::common::{LIMIT, agent, cluster, guard, saved, untouched, wait_drained, wait_same};

/// A cluster whose node B is drained, the IPVS table from before, and the agent that drained it.
pub(super) fn drained() -> Result<(Cluster, Vec<String>, Agent)> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let agent = agent(&cluster)?;
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    Ok((cluster, before, agent))
}

#[test]
fn a_killed_agent_s_work_is_undone_and_the_next_one_goes_on() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    let began = Instant::now();
    agent.kill();
    let took = wait_same(&cluster, &before, began, &agent.log())?;
    println!("restored {took:?} after SIGKILL");
    // The next agent finds the flag in `flags.json`, and drains the node again.
    agent.restart(&[])?;
    wait_drained(&cluster, &agent)?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}

#[test]
fn a_stopped_agent_s_work_is_undone_and_it_ends() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    let began = Instant::now();
    agent.proc()?.freeze()?;
    let took = wait_same(&cluster, &before, began, &agent.log())?;
    println!("restored {took:?} after SIGSTOP");
    agent.proc()?.thaw()?;
    let ended = || agent.log().contains("the agent stood still");
    wait_until("the agent has ended", LIMIT, ended).with_context(|| agent.log())?;
    agent.terminate()?;
    ensure!(saved(&cluster.a.ns)? == before, "the agent drained again before its end\n{}", agent.log());
    // A supervisor would start the next agent, which finds the flag in `flags.json`.
    agent.restart(&[])?;
    wait_drained(&cluster, &agent)?;
    // The agent is killed while it is stopped, after the guard has restored.
    let began = Instant::now();
    agent.proc()?.freeze()?;
    wait_same(&cluster, &before, began, &agent.log())?;
    agent.kill();
    ensure!(saved(&cluster.a.ns)? == before, "{}", agent.log());
    agent.restart(&[])?;
    wait_drained(&cluster, &agent)?;
    // The agent is stopped while it restores.
    let began = Instant::now();
    agent.unflag("node-b")?;
    agent.proc()?.freeze()?;
    wait_same(&cluster, &before, began, &agent.log())?;
    agent.proc()?.thaw()?;
    // The stopped agent has ended if it had something left to restore. Another agent takes over.
    agent.restart(&["--take-over"])?;
    let began = Instant::now();
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}

/// A reading of tables with millions of entries may take long. The drain holds meanwhile, since another thread renews the lease.
#[test]
fn a_long_look_at_the_tables_restores_nothing() -> Result<()> {
    /// Twice as long as a drain holds without a renewal of the lease.
    const LOOK: Duration = Duration::from_secs(6);
    let (cluster, before, agent) = drained()?;
    let out = saved(&cluster.a.ns)?;
    let still = Still::of(agent.proc()?.pid(), "drain")?;
    let since = Instant::now();
    while since.elapsed() < LOOK {
        ensure!(saved(&cluster.a.ns)? == out, "restored after {:?}\n{}", since.elapsed(), agent.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    still.lift()?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}

/// A container with the agent and its guard is paused for longer than the lease holds, and then ends.
#[test]
fn an_agent_that_was_paused_with_its_guard_restores_at_its_end() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    let guard = guard(&agent)?;
    agent.proc()?.freeze()?;
    kill(guard, Signal::SIGKILL)?;
    std::thread::sleep(RESTORED);
    ensure!(saved(&cluster.a.ns)? != before, "the drain was restored without agent and guard");
    agent.proc()?.signal(Signal::SIGTERM)?;
    agent.proc()?.thaw()?;
    agent.terminate()?;
    // The agent itself has restored: a guard that it may have started meanwhile would wait for the lease first.
    let now = saved(&cluster.a.ns)?;
    ensure!(now == before, "{now:#?}\n{before:#?}\n{}", agent.log());
    Ok(())
}
