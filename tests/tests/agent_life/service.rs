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

/// As a unit says by `WatchdogSec=`.
const WATCHDOG: Duration = Duration::from_secs(12);
/// Verdicts lapse by then: an agent that has not renewed them for so long hangs.
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

    /// Starts an agent over these folders as a unit of `Type=notify` is.
    fn begin(&self, ns: &Netns, agent: &Agent) -> Result<Proc> {
        let log = fs::File::create(self.log())?;
        let mut command = agent.command(&[]);
        command.env("NOTIFY_SOCKET", self.dir.path().join("notify"));
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.stdout(log.try_clone()?).stderr(log);
        Proc::spawn(ns, command)
    }

    /// The next message, within that time.
    fn told(&self, limit: Duration) -> Result<Option<String>> {
        self.socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let mut message = [0; 4096];
        match self.socket.recv(&mut message) {
            Ok(length) => Ok(Some(String::from_utf8(message[..length].to_vec())?)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until that message comes; gives all messages up to then.
    fn wait(&self, what: &str, limit: Duration) -> Result<Vec<String>> {
        let (begun, mut all) = (Instant::now(), Vec::new());
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let Some(told) = self.told(left)? else {
                bail!("no {what} within {limit:?}, but {all:?}; {}", fs::read_to_string(self.log())?)
            };
            let found = told.lines().any(|line| line.starts_with(what));
            all.extend(told.lines().map(str::to_owned));
            if found {
                return Ok(all);
            }
        }
    }
}

/// An agent that ended, and has left a flag on node-b.
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
    // By then the agent cuts, and answers requests.
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
    // The thread that renews verdicts hangs. All others go on, and the watchdog gets no sign of life.
    let still = Still::of(proc.pid(), "verdicts")?;
    std::thread::sleep(LAPSED + Duration::from_secs(1));
    while systemd.told(Duration::ZERO)?.is_some() {}
    // Two messages would come in that time.
    let told = systemd.told(WATCHDOG / 2)?;
    ensure!(told.is_none(), "{told:?} though nobody renews verdicts");
    still.lift()?;
    systemd.wait("WATCHDOG=1", WATCHDOG / 2)?;
    proc.signal(Signal::SIGTERM)?;
    systemd.wait("STOPPING=1", READY)?;
    ensure!(proc.wait(READY)?.success());
    Ok(())
}

/// A service manager that does not read holds up nothing.
#[test]
fn a_service_manager_that_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, agent) = flagged()?;
    let systemd = Systemd::new()?;
    let full = UnixDatagram::unbound()?;
    full.connect(systemd.dir.path().join("notify"))?;
    full.set_nonblocking(true)?;
    while full.send(b"STATUS=full\n").is_ok() {}
    let mut proc = systemd.begin(&ns, &agent)?;
    wait_until("it answers", READY, || agent.serves(proc.pid().as_raw()))?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "it does not cut");
    agent.unflag("node-b")?;
    ensure!(agent.node("node-b")?["action"] == "pass", "it still cuts");
    proc.signal(Signal::SIGTERM)?;
    ensure!(proc.wait(READY)?.success());
    let log = fs::read_to_string(systemd.log())?;
    ensure!(log.contains("event=\"ended\""), "{log}");
    systemd.told(Duration::ZERO)?.context("what filled it is gone")?;
    Ok(())
}

/// With the unit's capabilities and no others the agent does all that it does as root.
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
    // A test that may not raise limits cannot give the agent `LimitNICE=`, for which this stands in.
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
    wait_until("it answers", READY, || agent.serves(proc.pid().as_raw())).with_context(said)?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", said());
    let status = agent.status()?;
    // A probe that may not do what it tries says so.
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
