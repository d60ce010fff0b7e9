//! An agent ends at once when it is told to: by a take-over or by a signal.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{sys::signal::Signal, unistd::Pid};
use nodefence_tests::{
    Agent, Proc,
    client::wait_until,
    promises::ENDED,
    watch::{wait_within, within},
};

use super::{FOUR, READY, start};

/// Whether the agent's process has ended. It stays a zombie until its parent, this test, waits for it.
pub(super) fn has_ended(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_take_over_ends_the_first() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let first = agent.proc()?.pid();
    agent.expect(&["flag", "node-b", "--for", "1h", "--reason", "disk"])?;
    let mut second = agent.command(&["--take-over"]);
    second.stderr(Stdio::null());
    let second = Proc::spawn(&ns, second)?;
    wait_until("the second answers", Duration::from_secs(20), || agent.serves(second.pid().as_raw()))?;
    let b = agent.node("node-b")?;
    ensure!(b["action"] == "refuse" && b["flag"]["reason"] == "disk", "{b}");
    wait_within("the first one's end", ENDED, Instant::now(), || has_ended(first))?;
    ensure!(agent.log().contains("another agent takes over"), "{}", agent.log());
    Ok(())
}

/// A successor that is told to end while the first agent stands still ends at once. The first agent goes on with its work.
#[test]
fn a_successor_that_is_told_to_end_leaves_the_first() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let first = agent.proc()?.pid();
    agent.flag("node-b")?;
    agent.proc()?.freeze()?;
    let says = agent.cluster_file().with_file_name("second");
    let mut second = agent.command(&["--take-over"]);
    second.stderr(fs::File::create(&says)?);
    let mut second = Proc::spawn(&ns, second)?;
    let said = || fs::read_to_string(&says).unwrap_or_default();
    wait_until("the successor has probed the kernel", READY, || said().contains("milliseconds="))?;
    // By then the successor has sent its request to the first agent, or is about to send it.
    std::thread::sleep(Duration::from_millis(500));
    let told = Instant::now();
    second.signal(Signal::SIGTERM)?;
    second.wait(READY)?;
    // A successor that does not heed the signal waits for 20 s.
    within("a successor's end", ENDED, told).with_context(said)?;
    agent.proc()?.thaw()?;
    agent.expect(&["flag", "node-c", "--force"])?;
    ensure!(agent.json(&["status"])?["pid"] == first.as_raw(), "the first one is gone: {}", agent.log());
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    Ok(())
}

/// Ctrl-C sends SIGINT, and a terminal that is closed sends SIGHUP.
#[test]
fn a_terminal_ends_it_too() -> Result<()> {
    let (ns, agent) = start(&[])?;
    drop(agent);
    for signal in [Signal::SIGINT, Signal::SIGHUP] {
        let agent = Agent::start(&ns, "node-a", &["v0"], FOUR)?;
        let pid = agent.proc()?.pid();
        let told = Instant::now();
        agent.proc()?.signal(signal)?;
        wait_within(&format!("the end by {signal}"), ENDED, told, || has_ended(pid))?;
        ensure!(agent.log().contains(signal.as_str()), "{}", agent.log());
    }
    Ok(())
}
