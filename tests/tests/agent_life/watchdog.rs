//! The agent's own watchdog, which works where no service manager has one: an agent whose verdicts are not renewed ends in the promised time.

use std::{
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    client::wait_until,
    promises::LAPSED,
    traced::Still,
    watch::{held, missed},
};

use super::{READY, start};

/// An agent whose verdicts hang has ended after at most this time (docs/operating.md).
pub(super) const FOUND: Duration = Duration::from_secs(10);
/// The watchdog does not count a look that comes later than this, and begins to count anew: the agent itself stood still then.
const LATE: Duration = Duration::from_millis(500);

/// The thread that renews verdicts hangs, and all others go on.
#[test]
fn an_agent_whose_verdicts_hang_ends_and_the_next_one_cuts() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    let before = Instant::now();
    let still = Still::of(agent.proc()?.pid(), "verdicts")?;
    let hung = Instant::now();
    let ended = || UnixStream::connect(agent.socket()).is_err();
    wait_until("nobody accepts at the socket", READY, ended).with_context(|| agent.log())?;
    let took = hung.elapsed();
    // Counted from before the thread was held, which may be long before this test went on.
    let at_least = before.elapsed();
    // A process that another one traces is over only once the tracer lets it go. The thread is gone by then.
    let _gone = still.lift();
    let code = agent.ends_by_itself(READY)?;
    let log = agent.log();
    ensure!(code == Some(1), "{code:?}: {log}");
    // A stand-still of more than half a second delays the end by more than its own length.
    held("the end of an agent whose verdicts hang", FOUND, hung, took)
        .map_err(|late| missed(LATE, late))
        .with_context(|| log.clone())?;
    // `verdicts` must have done nothing for this long.
    ensure!(at_least > LAPSED, "it ended after {at_least:?}: {log}");
    ensure!(log.contains("event=\"verdicts-hang\""), "{log}");
    ensure!(!log.contains("event=\"ended"), "it did not end at once: {log}");
    // It left its socket and its flags.
    agent.restart(&[])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    Ok(())
}
