//! A drain does not outlive the flag's deadline, whatever becomes of the agent.

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
    println!("undone {took:?} after SIGKILL");
    // The flag is in the flags file: the next agent drains the node again, and another one goes on from there.
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
    println!("undone {took:?} after SIGSTOP");
    agent.proc()?.thaw()?;
    let ended = || agent.log().contains("the agent stood still");
    wait_until("the agent has ended", LIMIT, ended).with_context(|| agent.log())?;
    agent.terminate()?;
    ensure!(saved(&cluster.a.ns)? == before, "something was drained anew\n{}", agent.log());
    // The flag is in the flags file: its supervisor starts the next one.
    agent.restart(&[])?;
    wait_drained(&cluster, &agent)?;
    // Killed while it is stopped, after the guard was there.
    let began = Instant::now();
    agent.proc()?.freeze()?;
    wait_same(&cluster, &before, began, &agent.log())?;
    agent.kill();
    ensure!(saved(&cluster.a.ns)? == before, "{}", agent.log());
    agent.restart(&[])?;
    wait_drained(&cluster, &agent)?;
    // Stopped while it is at work.
    let began = Instant::now();
    agent.unflag("node-b")?;
    agent.proc()?.freeze()?;
    wait_same(&cluster, &before, began, &agent.log())?;
    agent.proc()?.thaw()?;
    // The agent ends where something was left to be done.
    agent.restart(&["--take-over"])?;
    let began = Instant::now();
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}

/// Reading tables of millions of entries may take long. The drain holds meanwhile, since another thread renews the lease.
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

/// A container that is paused for longer than the lease holds, and then ended: its guard is in there as well.
#[test]
fn an_agent_that_was_paused_with_its_guard_restores_at_its_end() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    let guard = guard(&agent)?;
    agent.proc()?.freeze()?;
    kill(guard, Signal::SIGKILL)?;
    std::thread::sleep(RESTORED);
    ensure!(saved(&cluster.a.ns)? != before, "somebody has restored it");
    agent.proc()?.signal(Signal::SIGTERM)?;
    agent.proc()?.thaw()?;
    agent.terminate()?;
    // At once: no guard that it may have started in between would have waited for less than the lease.
    let now = saved(&cluster.a.ns)?;
    ensure!(now == before, "{now:#?}\n{before:#?}\n{}", agent.log());
    Ok(())
}
