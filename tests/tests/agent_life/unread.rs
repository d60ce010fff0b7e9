//! Nobody needs to read an agent's standard error. If nobody does, the agent loses lines of the log and does all else.

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

/// The time in which a change of the log level, or a flag and the unflag after it, are carried out.
const ANSWERED: Duration = Duration::from_millis(500);
/// The longest time for which an agent that ends waits for the reader of the log.
const LAST_LINES: Duration = Duration::from_millis(1300);
/// More lines than the 4,096 that the agent stores unread.
const LINES: usize = 4400;
/// How often a node is flagged. Each flag waits for a round of challenges, so these are few.
const FLAGS: usize = 30;

/// A pipe that is full: not one more byte fits.
fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = pipe()?;
    let size = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096))?;
    writer.write_all(&vec![b'\n'; usize::try_from(size)?])?;
    Ok((reader, writer))
}

/// Starts an agent as `nodefence agent .. 2>&1 | less` does.
fn start_unread(ns: &Netns, agent: &Agent, more: &[&str], unread: &PipeWriter) -> Result<Proc> {
    let mut command = agent.command(more);
    command.stdout(unread.try_clone()?).stderr(unread.try_clone()?);
    let proc = Proc::spawn(ns, command)?;
    wait_until("an agent whose log is not read", READY, || agent.serves(proc.pid().as_raw()))?;
    Ok(proc)
}

/// Has the agent write [`LINES`] lines, and flags and unflags a node meanwhile. No request waits for the log.
fn write_lines(agent: &Agent) -> Result<()> {
    let mut slowest = Duration::ZERO;
    for line in 0..LINES {
        // A level that holds already would be no change.
        let level = ["warn,nodefence=info", "info"][line % 2];
        let level = Request::LogLevel { level: Some(level.into()), sudo_user: None };
        answered(&mut slowest, || agent.ask::<Value>(&level).map(drop))?;
        if line % (LINES / FLAGS) == 0 {
            answered(&mut slowest, || {
                agent.flag_by_socket("node-b")?;
                agent.ask::<Value>(&Request::Unflag { node: "node-b".into() }).map(drop)
            })?;
        }
    }
    println!("the slowest request took {slowest:?}");
    Ok(())
}

fn answered(slowest: &mut Duration, request: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    request()?;
    let took = begun.elapsed();
    if took > ANSWERED {
        within("an answer", ANSWERED, begun)?;
    }
    *slowest = took.max(*slowest);
    Ok(())
}

fn ends(mut agent: Proc, code: i32, told: Instant) -> Result<()> {
    let ended = agent.wait(READY)?;
    within("the end of an agent whose log is not read", ENDED + LAST_LINES, told)?;
    ensure!(ended.code() == Some(code), "{ended}");
    Ok(())
}

/// The pipe that takes the agent's log is full.
#[test]
fn a_log_whose_reader_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    let (_reader, unread) = full_pipe()?;
    let first = start_unread(&ns, &agent, &[], &unread)?;
    ensure!(agent.status()?["log_lines_lost"] == 0, "lines were lost for which the agent has room");
    write_lines(&agent)?;
    let lost = agent.status()?["log_lines_lost"].as_u64().context("no number")?;
    ensure!(lost > 0, "{LINES} lines, and none is lost");
    let told = format!("  NF31  {lost} lines were lost");
    ensure!(agent.expect(&["status"])?.contains(&told), "{}", agent.expect(&["status"])?);
    agent.flag("node-b")?;
    let asked = Instant::now();
    let second = start_unread(&ns, &agent, &["--take-over"], &unread)?;
    ends(first, 0, asked)?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "the second agent does not know who is flagged");
    let told = Instant::now();
    second.signal(Signal::SIGTERM)?;
    ends(second, 0, told)?;
    // An agent that cannot start does not wait for the reader either.
    let mut command = agent.command(&["--cluster-file", "/nowhere"]);
    command.stdout(unread.try_clone()?).stderr(unread);
    let began = Instant::now();
    ends(Proc::spawn(&ns, command)?, 1, began)
}

/// The reader of the log has died: the agent and a command go on without it.
#[test]
fn nobody_needs_to_read_the_log() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    let mut command = agent.command(&[]);
    command.stderr(Stdio::piped());
    let mut unread = ns.run(move || command.spawn())?;
    let answers = wait_until("the agent answers", Duration::from_secs(20), || agent.status().is_ok());
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
    ensure!(code == Some(7), "the exit code is {code:?} instead of 7, which an unknown node has");
    Ok(())
}
