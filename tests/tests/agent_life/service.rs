//! The agent's messages to a service manager: this test plays systemd, with a datagram socket as its NOTIFY_SOCKET.

use std::{
    fs,
    io::ErrorKind,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{Agent, Netns, Proc, client::wait_until, traced::Still};
use tempfile::TempDir;

use super::{READY, start};

/// The value that a unit sets by `WatchdogSec=`.
const WATCHDOG: Duration = Duration::from_secs(12);
/// The time after which a verdict lapses. An agent that has not renewed its verdicts for so long hangs.
const LAPSED: Duration = Duration::from_secs(3);

struct Systemd {
    dir: TempDir,
    socket: UnixDatagram,
}

impl Systemd {
    fn new() -> Result<Self> {
        let dir = TempDir::with_prefix("nodefence-test-")?;
        let socket = UnixDatagram::bind(dir.path().join("notify"))?;
        Ok(Self { dir, socket })
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Starts an agent with the folders of `agent`, as systemd starts a unit of `Type=notify`.
    fn begin(&self, ns: &Netns, agent: &Agent) -> Result<Proc> {
        let log = fs::File::create(self.log())?;
        let mut command = agent.command(&[]);
        command.env("NOTIFY_SOCKET", self.dir.path().join("notify"));
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.stdout(log.try_clone()?).stderr(log);
        Proc::spawn(ns, command)
    }

    /// The next message. `None` if none comes within `limit`.
    fn message(&self, limit: Duration) -> Result<Option<String>> {
        self.socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(length) => Ok(Some(String::from_utf8(buffer[..length].to_vec())?)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a message with a line that begins with `what`. Gives the lines of all messages up to then.
    fn wait(&self, what: &str, limit: Duration) -> Result<Vec<String>> {
        let begun = Instant::now();
        let mut all = Vec::new();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let Some(message) = self.message(left)? else {
                bail!("no {what} within {limit:?}, but {all:?}; {}", fs::read_to_string(self.log())?)
            };
            let found = message.lines().any(|line| line.starts_with(what));
            all.extend(message.lines().map(str::to_owned));
            if found {
                return Ok(all);
            }
        }
    }
}

/// An agent that has ended, and has left a flag on node-b.
fn flagged() -> Result<(Arc<Netns>, Agent)> {
    let (ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    agent.terminate()?;
    Ok((ns, agent))
}

#[test]
fn systemd_hears_that_it_cuts_that_it_is_alive_and_that_it_ends() -> Result<()> {
    let (ns, agent) = flagged()?;
    let systemd = Systemd::new()?;
    let mut proc = systemd.begin(&ns, &agent)?;
    let first = systemd.wait("READY=1", READY)?;
    ensure!(first == ["READY=1"], "{first:?}");
    // At READY=1 the agent already cuts, and answers requests.
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", fs::read_to_string(systemd.log())?);
    let status = systemd.wait("STATUS=", READY)?;
    ensure!(
        status.last().is_some_and(|line| line == "STATUS=enforces; nodes cut: 1, observed: 0"),
        "{status:?}"
    );
    systemd.wait("WATCHDOG=1", WATCHDOG)?;
    for _ in 0..2 {
        let since = Instant::now();
        let told = systemd.wait("WATCHDOG=1", WATCHDOG)?;
        ensure!(since.elapsed() < WATCHDOG / 2, "{:?}: {told:?}", since.elapsed());
    }
    agent.expect(&["mode", "observe"])?;
    let told = systemd.wait("STATUS=", READY)?;
    ensure!(told.iter().any(|line| line == "STATUS=observes; nodes cut: 0, observed: 1"), "{told:?}");
    // The thread that renews verdicts hangs while all others go on. The watchdog must get no sign of life.
    let still = Still::of(proc.pid(), "verdicts")?;
    std::thread::sleep(LAPSED + Duration::from_secs(1));
    while systemd.message(Duration::ZERO)?.is_some() {}
    // An agent that renews verdicts sends two messages in that time.
    let told = systemd.message(WATCHDOG / 2)?;
    ensure!(told.is_none(), "{told:?} though no thread renews verdicts");
    still.lift()?;
    systemd.wait("WATCHDOG=1", WATCHDOG / 2)?;
    proc.signal(Signal::SIGTERM)?;
    systemd.wait("STOPPING=1", READY)?;
    ensure!(proc.wait(READY)?.success());
    Ok(())
}

/// No thread of the agent waits for a service manager that does not read its messages.
#[test]
fn a_service_manager_that_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, agent) = flagged()?;
    let systemd = Systemd::new()?;
    let full = UnixDatagram::unbound()?;
    full.connect(systemd.dir.path().join("notify"))?;
    full.set_nonblocking(true)?;
    while full.send(b"STATUS=full\n").is_ok() {}
    let mut proc = systemd.begin(&ns, &agent)?;
    wait_until("the agent answers", READY, || agent.serves(proc.pid().as_raw()))?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "the agent does not cut");
    agent.unflag("node-b")?;
    ensure!(agent.node("node-b")?["action"] == "pass", "the agent cuts after the unflag");
    proc.signal(Signal::SIGTERM)?;
    ensure!(proc.wait(READY)?.success());
    let log = fs::read_to_string(systemd.log())?;
    ensure!(log.contains("event=\"ended\""), "{log}");
    systemd.message(Duration::ZERO)?.context("the messages that filled the socket are gone")?;
    Ok(())
}

/// The unit's capabilities are enough for all that the agent does as root.
#[test]
fn what_the_unit_leaves_the_agent_is_enough() -> Result<()> {
    const UNIT: &str = include_str!("../../../deploy/systemd/nodefence.service");
    let value =
        |key: &str| UNIT.lines().find_map(|line| line.strip_prefix(key)).with_context(|| key.to_owned());
    let (ns, agent) = flagged()?;
    let systemd = Systemd::new()?;
    let capabilities = value("CapabilityBoundingSet=")?.split_whitespace();
    let capabilities: Vec<String> =
        capabilities.map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase())).collect();
    // The test may not be allowed to raise limits, so it gives the agent CAP_SYS_NICE in place of `LimitNICE=`.
    ensure!(value("LimitNICE=")? == "-20");
    ensure!(value("NoNewPrivileges=")? == "yes");
    let own = agent.command(&[]);
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--inh-caps=-all"]);
    command.arg(format!("--bounding-set=-all,+sys_nice,{}", capabilities.join(",")));
    command.arg(own.get_program()).args(own.get_args()).env("RUST_LOG", "debug");
    let log = fs::File::create(systemd.log())?;
    command.stdout(log.try_clone()?).stderr(log);
    let mut proc = Proc::spawn(&ns, command)?;
    let said = || fs::read_to_string(systemd.log()).unwrap_or_default();
    wait_until("the agent answers", READY, || agent.serves(proc.pid().as_raw())).with_context(said)?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", said());
    let status = agent.status()?;
    // A probe that lacks a privilege reports that instead of a finding.
    ensure!(status["probe"]["conntrack"]["found"].is_object(), "{}", status["probe"]);
    ensure!(status["interfaces"][0]["tc"].is_string(), "{}", status["interfaces"]);
    proc.signal(Signal::SIGTERM)?;
    ensure!(proc.wait(READY)?.success());
    let log = said();
    for event in ["no-precedence", "keeps-precedence", "neighbours-not-held", "notrack-unknown"] {
        ensure!(!log.contains(&format!("event=\"{event}\"")), "{event}: {log}");
    }
    ensure!(!log.contains(" ERROR ") && !log.contains("Operation not permitted"), "{log}");
    Ok(())
}
