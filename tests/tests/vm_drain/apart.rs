//! An external guard, started apart in a PID namespace of its own, as in another container. Agents start, are killed and end meanwhile.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nodefence_tests::{
    Agent, Cluster, Proc,
    client::wait_until,
    nodefence_command,
    promises::{ENDED, RESTORED},
    watch::{wait_within, within},
};

use super::{
    common::{LIMIT, agent_with, cluster, guard, saved, untouched, wait_drained, wait_same, weighted_on_b},
    life::drained,
};

/// The external guard of an agent's run folder.
struct Apart {
    proc: Proc,
    log: PathBuf,
}

fn command(agent: &Agent) -> Result<(Command, PathBuf)> {
    let run_dir = agent.socket().parent().context("no folder")?.to_owned();
    let mut command = nodefence_command()?;
    command.args(["guard", "--run-dir"]).arg(&run_dir);
    Ok((command, run_dir))
}

impl Apart {
    fn start(cluster: &Cluster, agent: &Agent) -> Result<Self> {
        let (mut command, run_dir) = command(agent)?;
        let log = run_dir.with_file_name("guard.log");
        let file = File::options().create(true).append(true).open(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let proc = Proc::spawn_as_init(&cluster.a.ns, command)?;
        Ok(Self { proc, log })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn lives(&mut self) -> Result<()> {
        ensure!(self.proc.ended()?.is_none(), "the guard ended\n{}", self.log());
        Ok(())
    }
}

/// Whether `status` says that an external guard is seen, or that none is.
fn is_seen(agent: &Agent, seen: bool) -> bool {
    let expected = serde_json::json!({ "kind": "external", "seen": seen });
    agent.status().is_ok_and(|status| status["ipvs"]["guard"] == expected)
}

fn wait_seen(agent: &Agent, seen: bool) -> Result<()> {
    let what = if seen { "the guard is seen" } else { "no guard is seen" };
    wait_until(what, LIMIT, || is_seen(agent, seen)).map(drop)
}

/// Checks that nothing is restored for as long as a guard needs to restore.
fn stays_drained(cluster: &Cluster, log: impl Fn() -> String) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < RESTORED {
        let found = weighted_on_b(&cluster.a.ns)?;
        ensure!(found.is_empty(), "restored: {found:?}\n{}", log());
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn ends_well(apart: &mut Apart, within: Duration) -> Result<()> {
    let status = apart.proc.wait(within).with_context(|| apart.log())?;
    ensure!(status.success(), "{status}\n{}", apart.log());
    Ok(())
}

#[test]
fn the_guard_restores_whenever_an_agent_is_killed() -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let mut agent = agent_with(&cluster, &["--guard", "external"])?;
    wait_seen(&agent, false)?;
    let said = agent.warning("NF30")?;
    ensure!(said.as_deref().is_some_and(|said| said.contains("and none is there")), "{said:?}");
    let mut apart = Apart::start(&cluster, &agent)?;
    wait_seen(&agent, true)?;
    // The guard is the first process of a PID namespace of its own.
    let status =
        std::fs::read_to_string(Path::new("/proc").join(apart.proc.pid().to_string()).join("status"))?;
    let inner = status.lines().find(|line| line.starts_with("NSpid:")).context("no NSpid")?;
    ensure!(inner.split_whitespace().count() == 3 && inner.ends_with("\t1"), "{inner}");
    // A second guard ends with an error.
    let (mut second, _) = command(&agent)?;
    let second = second.output()?;
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    ensure!(second.status.code() == Some(1) && told.contains("another `nodefence guard`"), "{second:?}");

    agent.flag("node-b")?;
    for time in 0..2 {
        wait_drained(&cluster, &agent)?;
        ensure!(guard(&agent).is_err(), "the agent started a guard of its own\n{}", agent.log());
        stays_drained(&cluster, || format!("{}\n{}", agent.log(), apart.log()))?;
        let began = Instant::now();
        agent.kill();
        let took = wait_same(&cluster, &before, began, &apart.log())?;
        println!("kill {time}: restored {took:?} later");
        apart.lives()?;
        // The next agent finds the flag in `flags.json`.
        agent.restart(&[])?;
    }
    wait_drained(&cluster, &agent)?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)?;
    // Nothing is drained, so the guard ends without waiting for the agent's end.
    let began = Instant::now();
    apart.proc.signal(Signal::SIGTERM)?;
    ends_well(&mut apart, LIMIT)?;
    within("the guard's end", ENDED, began)?;
    wait_seen(&agent, false)
}

/// A guard that is told to end waits until nothing is drained. A pod may end in this order: its guard is told to end, and then its agent is killed.
#[test]
fn it_is_told_to_end_and_goes_only_once_nothing_is_left() -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let mut agent = agent_with(&cluster, &["--guard", "external"])?;
    let mut apart = Apart::start(&cluster, &agent)?;
    wait_seen(&agent, true)?;
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    apart.proc.signal(Signal::SIGTERM)?;
    stays_drained(&cluster, || format!("{}\n{}", agent.log(), apart.log()))?;
    apart.lives()?;
    // An agent that stands still, as in a paused container, lets its lease lapse.
    let began = Instant::now();
    agent.proc()?.freeze()?;
    wait_same(&cluster, &before, began, &apart.log())?;
    // The guard still lives: a change of the stopped agent may be on its way to the kernel.
    apart.lives()?;
    agent.kill();
    ends_well(&mut apart, RESTORED)?;
    let now = saved(&cluster.a.ns)?;
    ensure!(now == before, "{now:#?}\n{before:#?}\n{}", apart.log());

    // Here the agent itself restores what it drained.
    agent.restart(&[])?;
    let mut apart = Apart::start(&cluster, &agent)?;
    wait_drained(&cluster, &agent)?;
    wait_seen(&agent, true)?;
    apart.proc.signal(Signal::SIGTERM)?;
    std::thread::sleep(Duration::from_secs(1));
    apart.lives()?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    wait_within("the guard ends", RESTORED, began, || matches!(apart.proc.ended(), Ok(Some(_))))
        .with_context(|| apart.log())?;
    untouched(&agent)
}

/// Agent and guard are killed together, as with their container. Nothing is restored until another guard is started.
#[test]
fn a_later_guard_restores_what_a_killed_container_left() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    let child = guard(&agent)?;
    // The agent is stopped first, so that it does not start another guard.
    agent.proc()?.freeze()?;
    kill(child, Signal::SIGKILL)?;
    agent.kill();
    stays_drained(&cluster, || agent.log())?;
    let began = Instant::now();
    let mut apart = Apart::start(&cluster, &agent)?;
    let took = wait_same(&cluster, &before, began, &apart.log())?;
    println!("restored {took:?} after the guard's start");
    apart.lives()?;
    apart.proc.signal(Signal::SIGTERM)?;
    ends_well(&mut apart, RESTORED)
}

/// A unit or a pod that ends signals each of its processes, also the guard. The guard must not end before its agent.
#[test]
fn a_child_is_not_ended_by_what_is_meant_for_its_agent() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    let child = guard(&agent)?;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(child, signal)?;
    }
    // The agent starts another guard within a second after its guard has ended.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(guard(&agent)? == child, "the guard ended by a signal\n{}", agent.log());
    let began = Instant::now();
    agent.kill();
    wait_same(&cluster, &before, began, &agent.log()).map(drop)
}
