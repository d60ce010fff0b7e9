//! The agent's own watchdog leaves an agent alone that was stopped or is off. `watchdog.rs` has an agent whose verdicts hang.

use std::{os::unix::net::UnixStream, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{client::wait_until, traced::Still};

use super::{READY, start, watchdog::FOUND};

/// How long the agent is stopped.
const STOPPED: Duration = Duration::from_secs(20);

#[test]
fn an_agent_that_stood_still_or_is_off_is_left_alone() -> Result<()> {
    let (_ns, stopped) = start(&[])?;
    let (_other_ns, off) = start(&[])?;
    stopped.flag("node-b")?;
    let pids = [&stopped, &off].map(|agent| agent.proc().map(|proc| proc.pid().as_raw()));
    off.expect(&["off", "--reason", "test"])?;
    stopped.proc()?.freeze()?;
    sleep(STOPPED);
    stopped.proc()?.thaw()?;
    // Where the watchdog counted the time of the stand-still, or watched an agent that is off, this is long enough for it.
    sleep(FOUND);
    for (agent, pid) in [&stopped, &off].into_iter().zip(pids) {
        ensure!(agent.status()?["pid"] == pid?, "{}", agent.log());
        ensure!(!agent.log().contains("verdicts-hang"), "{}", agent.log());
    }
    ensure!(stopped.node("node-b")?["action"] == "refuse", "{}", stopped.log());
    ensure!(off.status()?["state"] == "off", "{}", off.log());
    // An agent that was turned on has a watchdog too.
    off.expect(&["on"])?;
    wait_until("the agent is on", READY, || off.node("node-b").is_ok()).with_context(|| off.log())?;
    let still = Still::of(off.proc()?.pid(), "verdicts")?;
    wait_until("nobody accepts at the socket", READY, || UnixStream::connect(off.socket()).is_err())
        .with_context(|| off.log())?;
    let _gone = still.lift();
    Ok(())
}
