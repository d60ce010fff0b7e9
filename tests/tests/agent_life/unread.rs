//! Standard error of an agent need not be read: lines are lost, and nothing else.

use std::{
    io::{PipeReader, PipeWriter, Write as _, pipe},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::Signal,
};
use nodefence::report::Request;
use nodefence_tests::{
    Agent, Netns, Proc, client::wait_until, nodefence_command, promises::ENDED, watch::within,
};
use serde_json::Value;

use super::{READY, start};

/// A flag, and its end, are carried out by then.
const ANSWERED: Duration = Duration::from_millis(500);
/// How long an end waits at most for the reader of the log.
const LAST_LINES: Duration = Duration::from_millis(1300);
/// More lines than the agent stores unread (4,096).
const LINES: usize = 4400;

/// The reader stands still, and no byte more fits.
fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = pipe()?;
    let size = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096))?;
    writer.write_all(&vec![b'\n'; usize::try_from(size)?])?;
    Ok((reader, writer))
}

/// As `nodefence agent .. 2>&1 | less` is.
fn start_unread(ns: &Netns, agent: &Agent, more: &[&str], unread: &PipeWriter) -> Result<Proc> {
    let mut command = agent.command(more);
    command.stdout(unread.try_clone()?).stderr(unread.try_clone()?);
    let proc = Proc::spawn(ns, command)?;
    wait_until("an agent whose log is not read", READY, || agent.serves(proc.pid().as_raw()))?;
    Ok(proc)
}

/// How many lines are written; none is waited for.
fn flag_and_unflag(agent: &Agent) -> Result<()> {
    let mut slowest = Duration::ZERO;
    for _ in 0..LINES / 2 {
        let begun = Instant::now();
        agent.flag_by_socket("node-b")?;
        agent.ask::<Value>(&Request::Unflag { node: "node-b".into() })?;
        let took = begun.elapsed();
        if took > ANSWERED {
            within("a flag and its end", ANSWERED, begun)?;
        }
        slowest = slowest.max(took);
    }
    println!("the slowest of {} flags and their ends took {slowest:?}", LINES / 2);
    Ok(())
}

fn ends(mut agent: Proc, code: i32, told: Instant) -> Result<()> {
    let ended = agent.wait(READY)?;
    within("the end of an agent whose log is not read", ENDED + LAST_LINES, told)?;
    ensure!(ended.code() == Some(code), "{ended}");
    Ok(())
}

/// The agent's pipe is full.
#[test]
fn a_log_whose_reader_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    let (_reader, unread) = full_pipe()?;
    let first = start_unread(&ns, &agent, &[], &unread)?;
    ensure!(agent.status()?["log_lines_lost"] == 0, "lines were lost that fit");
    flag_and_unflag(&agent)?;
    let lost = agent.status()?["log_lines_lost"].as_u64().context("no number")?;
    ensure!(lost > 0, "{LINES} lines, and none is lost");
    let told = format!("  NF31  {lost} lines were lost");
    ensure!(agent.expect(&["status"])?.contains(&told), "{}", agent.expect(&["status"])?);
    agent.flag("node-b")?;
    let asked = Instant::now();
    let second = start_unread(&ns, &agent, &["--take-over"], &unread)?;
    ends(first, 0, asked)?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "the second does not know who is flagged");
    let told = Instant::now();
    second.signal(Signal::SIGTERM)?;
    ends(second, 0, told)?;
    // An agent that cannot start does not either.
    let mut command = agent.command(&["--cluster-file", "/nowhere"]);
    command.stdout(unread.try_clone()?).stderr(unread);
    let began = Instant::now();
    ends(Proc::spawn(&ns, command)?, 1, began)
}

/// A log file on a full disk, a reader that has died: lines are lost, and nothing else.
#[test]
fn nobody_needs_to_read_the_log() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    let mut command = agent.command(&[]);
    command.stderr(Stdio::piped());
    let mut unread = ns.run(move || command.spawn())?;
    let answers = wait_until("it answers", Duration::from_secs(20), || agent.status().is_ok());
    drop(unread.stderr.take());
    let flagged = agent.expect(&["flag", "node-b"]).and_then(|_| agent.expect(&["unflag", "node-b"]));
    let alive = unread.try_wait()?.is_none();
    let mut command = nodefence_command()?;
    command.arg("--run-dir").arg(agent.socket().parent().context("no folder")?).args(["flag", "nobody"]);
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let code = command.stderr(writer).status()?.code();
    unread.kill()?;
    unread.wait()?;
    answers?;
    flagged?;
    ensure!(alive, "the agent ended with its log");
    ensure!(code == Some(7), "{code:?} instead of that of a node that is not there");
    Ok(())
}
