//! `nodefence off` and `nodefence on`: what is left in the kernel, what outlives the agent, and what the agent says and refuses meanwhile.

use std::{
    fs,
    net::SocketAddr,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;
use nodefence::{
    ledger::{Entry, Ledger, Pair, Phase, Record},
    report::{Client, Request},
};
use nodefence_tests::{
    Agent, Cluster, Family, Netns, Options, Outcome, Proc, bin, client::try_new, client::wait_until,
    four_nodes, left::left, topology::Service, traced::Still,
};
use serde_json::Value;
use tempfile::TempDir;

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(60);
/// How often an agent is killed while it is being turned off.
const KILLS: u32 = 8;

fn start() -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("off")?;
    let agent = Agent::start(&ns, "node-a", &["v0"], four_nodes::FILE)?;
    Ok((ns, agent))
}

fn nothing_is_left(ns: &Netns) -> Result<()> {
    let left = left(ns)?;
    ensure!(left.is_empty(), "{left:#?}");
    Ok(())
}

fn run_dir(agent: &Agent) -> Result<PathBuf> {
    Ok(agent.socket().parent().context("no folder")?.to_owned())
}

fn off_file(agent: &Agent) -> PathBuf {
    agent.socket().with_file_name("off.json")
}

/// Runs a command that also works without an agent.
fn alone(agent: &Agent, args: &[&str]) -> Result<Value> {
    let run_dir = run_dir(agent)?;
    let folder = ["--run-dir", run_dir.to_str().context("no UTF-8")?];
    agent.json(&[&folder, args].concat())
}

fn is_off(agent: &Agent) -> Result<Value> {
    let status = agent.status()?;
    ensure!(status["kind"] == "OffStatus" && status["state"] == "off", "{status}");
    Ok(status)
}

/// The descriptors of BPF objects that a process has.
fn bpf_files(pid: Pid) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor may be closed meanwhile.
        if let Ok(target) = fs::read_link(entry?.path()) {
            found.push(target.to_string_lossy().into_owned());
        }
    }
    found.retain(|target| target.contains("bpf"));
    Ok(found)
}

fn threads(pid: Pid) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        names.extend(fs::read_to_string(entry?.path().join("comm")).map(|name| name.trim().to_owned()));
    }
    names.sort();
    Ok(names)
}

/// The lines that a command prints to standard error, and its exit code.
fn refused(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn backend(cluster: &Cluster) -> SocketAddr {
    (cluster.b.pod_address(Family::V4), Service::Web.ports().1).into()
}

fn attempt(cluster: &Cluster) -> Outcome {
    try_new(&cluster.a.pod, backend(cluster), Duration::from_secs(1)).0
}

#[test]
fn off_lets_traffic_pass_at_once_and_on_cuts_again() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let ns = &cluster.a.ns;
    let pid = agent.proc()?.pid();
    agent.expect(&["flag", "node-b", "--for", "1h"])?;
    ensure!(attempt(&cluster) == Outcome::Refused && !left(ns)?.is_empty(), "nothing is cut at first");
    let report = agent.json(&["off", "--reason", "is it nodefence?"])?;
    ensure!(attempt(&cluster) == Outcome::Answered, "{}", agent.log());
    nothing_is_left(ns)?;
    ensure!(report["kind"] == "OffReport" && report["was_off"] == false && report["flags"] == 1, "{report}");
    ensure!(report["pid"] == pid.as_raw() && report["warnings"] == Value::Array(Vec::new()), "{report}");
    ensure!(report["maps"].as_u64().is_some_and(|maps| maps > 5), "{report}");
    // Nothing of ours is loaded by this process, and no thread is left that worked on it.
    wait_until("the agent's BPF objects are closed", LIMIT, || {
        bpf_files(pid).is_ok_and(|found| found.is_empty())
    })
    .with_context(|| format!("{:?} {:?}", bpf_files(pid), threads(pid)))?;
    let ours = ["verdicts", "builder", "tables", "store", "drain", "rescue", "answers", "source", "audit"];
    let gone = || threads(pid).is_ok_and(|names| !names.iter().any(|name| ours.contains(&name.as_str())));
    wait_until("the agent's threads have ended", LIMIT, gone)
        .with_context(|| format!("{:?}", threads(pid)))?;

    let text = agent.expect(&["status"])?;
    ensure!(
        text.starts_with("OFF: off since ") && text.contains("by root") && text.contains("is it nodefence?"),
        "{text}"
    );
    let status = is_off(&agent)?;
    ensure!(
        status["taken_back"] == true && status["flags"] == 1 && status["off"]["kind"] == "node",
        "{status}"
    );
    ensure!(agent.cli(&["status", "--check"])?.status.code() == Some(5));
    ensure!(agent.json(&["mode"])?["state"] == "off");
    ensure!(agent.json(&["log-level"])?["set"] == "info");
    for verb in [
        &["flag", "node-b"][..],
        &["unflag", "node-b"],
        &["nodes"],
        &["counters"],
        &["audit"],
        &["mode", "enforce"],
    ] {
        let (code, text) = refused(&agent.cli(verb)?);
        ensure!(code == Some(4), "{verb:?}: {code:?} {text}");
        ensure!(
            text.contains("the agent is off since ") && text.contains("`nodefence on` turns it on"),
            "{text}"
        );
    }
    let doctor = String::from_utf8_lossy(&agent.cli(&["doctor"])?.stdout).into_owned();
    ensure!(doctor.contains("is off since ") && doctor.contains("nodefence on"), "{doctor}");
    let again = agent.json(&["off", "--reason", "another"])?;
    ensure!(again["was_off"] == true && again["off"] == status["off"], "{again}");

    let on = agent.json(&["on"])?;
    ensure!(on["runs"] == true && on["was"] == status["off"] && on["pid"] == pid.as_raw(), "{on}");
    ensure!(attempt(&cluster) == Outcome::Refused, "{}", agent.log());
    let status = agent.status()?;
    ensure!(status["pid"] == pid.as_raw() && status["kind"] == "Status", "{status}");
    ensure!(agent.node("node-b")?["flag"]["remaining_seconds"].as_u64().is_some_and(|left| left <= 3600));
    let on = agent.json(&["on"])?;
    ensure!(on["was"].is_null() && on["runs"] == true, "{on}");
    ensure!(!off_file(&agent).exists());
    for event in ["turned-off", "turned-on", "is-off", "starts-anew"] {
        ensure!(agent.log().contains(&format!("event=\"{event}\"")), "{event}: {}", agent.log());
    }
    Ok(())
}

#[test]
fn off_outlives_the_agent() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    agent.expect(&["off"])?;
    let off = is_off(&agent)?["off"].clone();
    for kill in [false, true] {
        if kill {
            agent.kill();
        } else {
            agent.terminate()?;
        }
        agent.restart(&[])?;
        ensure!(is_off(&agent)?["off"] == off, "{}", agent.log());
        nothing_is_left(&ns)?;
    }
    // An agent that takes over is off too.
    let before = agent.proc()?.pid();
    agent.restart(&["--take-over"])?;
    ensure!(is_off(&agent)?["off"] == off && agent.proc()?.pid() != before, "{}", agent.log());
    nothing_is_left(&ns)?;
    agent.expect(&["on"])?;
    ensure!(agent.node("node-b")?["action"] == "refuse" && !left(&ns)?.is_empty());
    Ok(())
}

/// Also restores what the ledger names: this kernel has no IPVS, so nothing is left to be restored, and the ledger goes.
#[test]
fn without_an_agent_the_command_removes_what_the_last_one_left() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    agent.kill();
    ensure!(!left(&ns)?.is_empty());
    let service = nodefence::ipvs::ServiceKey::Address {
        address: "10.96.0.1:80".parse()?,
        protocol: nodefence::ipvs::Protocol::TCP,
    };
    let destination = "10.9.1.1:80".parse()?;
    let original = nodefence::ipvs::Destination::new(destination, 1);
    let entry = Entry { node: "node-b".into(), phase: Phase::Lowered, original };
    let folder = run_dir(&agent)?;
    // A ledger is of one network namespace.
    ns.within(|| {
        Ok(Ledger::open(&folder)?.0.append(&[Record::Own(Pair { service, destination }, entry)])?)
    })?;
    let report = alone(&agent, &["off", "--reason", "by hand"])?;
    ensure!(report["pid"].is_null() && report["was_off"] == false && report["flags"] == 1, "{report}");
    nothing_is_left(&ns)?;
    ensure!(!Ledger::path(&run_dir(&agent)?).exists(), "the ledger is left");
    let again = alone(&agent, &["off"])?;
    ensure!(again["was_off"] == true && again["off"]["reason"] == "by hand", "{again}");
    agent.restart(&[])?;
    ensure!(is_off(&agent)?["off"]["reason"] == "by hand");
    agent.kill();
    let on = alone(&agent, &["on"])?;
    ensure!(on["was"]["reason"] == "by hand" && on["runs"] == false && on["pid"].is_null(), "{on}");
    ensure!(alone(&agent, &["on"])?["was"].is_null());
    agent.restart(&[])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    // `detach` leaves nothing to be off.
    agent.expect(&["off"])?;
    agent.terminate()?;
    let detached = alone(&agent, &["detach"])?;
    ensure!(detached["off_file"].as_str().is_some_and(|file| file.ends_with("/off.json")), "{detached}");
    ensure!(!off_file(&agent).exists());
    Ok(())
}

/// A source that does not answer (here one that lists nothing) must not keep an operator from turning the agent off. The agent renews meanwhile what an
/// earlier one left.
#[test]
fn an_agent_that_still_waits_for_its_source_is_turned_off() -> Result<()> {
    let ns = four_nodes::namespace("off")?;
    let mut agent = Agent::of_objects(&bin("nodefence-objects")?, &ns, "node-a", &["v0"], &[])?;
    agent.wait_for_log("view-awaited")?;
    let pid = agent.proc()?.pid();
    let report = alone(&agent, &["off", "--reason", "no list"])?;
    ensure!(report["was_off"] == false && report["off"]["reason"] == "no list", "{report}");
    ensure!(report["pid"] == pid.as_raw(), "{report}");
    ensure!(is_off(&agent)?["off"]["reason"] == "no list");
    agent.ready()
}

/// Whatever is killed when: once the file is there the next agent is off, and nothing is left. Without the file nothing was promised.
#[test]
fn a_kill_while_it_is_turned_off_leaves_it_off_or_on() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    let begun = Instant::now();
    agent.expect(&["off"])?;
    let whole = begun.elapsed();
    agent.expect(&["on"])?;
    let mut offs = 0;
    for kill in 0..KILLS {
        // Where the agent is dead already, the command does the work itself, in that folder.
        let folder = run_dir(&agent)?;
        let folder = folder.to_str().context("no UTF-8")?;
        let mut command = agent.begin(&["--run-dir", folder, "off", "--reason", "kill"])?;
        std::thread::sleep(whole * kill / KILLS);
        agent.kill();
        let answered = command.wait()?.success();
        let is_written = off_file(&agent).exists();
        ensure!(is_written || !answered, "the command was told that the agent is off, and no file says so");
        agent.restart(&[])?;
        if is_written {
            offs += 1;
            ensure!(is_off(&agent)?["off"]["reason"] == "kill");
            nothing_is_left(&ns).with_context(|| format!("kill {kill}: {}", agent.log()))?;
            agent.expect(&["on"])?;
        }
        ensure!(agent.node("node-b")?["action"] == "refuse", "kill {kill}: {}", agent.log());
    }
    ensure!(offs > 0, "it was always killed before the file was there, of {whole:?}");
    Ok(())
}

#[test]
fn a_damaged_file_counts() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    agent.kill();
    fs::write(off_file(&agent), "{\"version\":1,\"by\"")?;
    agent.restart(&[])?;
    let status = is_off(&agent)?;
    let problem = status["off"]["problem"].as_str().unwrap_or_default();
    ensure!(problem.contains("off.json is damaged") && status["off"]["since"].is_null(), "{status}");
    ensure!(agent.expect(&["status"])?.contains("off.json is damaged"));
    ensure!(agent.log().contains("event=\"off-file-damaged\""), "{}", agent.log());
    nothing_is_left(&ns)?;
    agent.expect(&["on"])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    Ok(())
}

/// A thread that hangs in the kernel holds up neither the verdicts' end nor the command.
#[test]
fn a_file_that_cannot_be_written_is_no_reason_to_stay_on() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    // The file is made by way of `off.new`.
    fs::create_dir(off_file(&agent).with_extension("new"))?;
    let report = agent.json(&["off"])?;
    let warnings = report["warnings"].to_string();
    ensure!(
        warnings.contains("cannot write ") && warnings.contains("a restart of the agent turns it on again"),
        "{report}"
    );
    is_off(&agent)?;
    nothing_is_left(&ns)?;
    agent.kill();
    agent.restart(&[])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    Ok(())
}

#[test]
fn a_thread_that_stands_still_does_not_keep_the_programs_attached() -> Result<()> {
    let (ns, agent) = start()?;
    agent.flag("node-b")?;
    let still = Still::of(agent.proc()?.pid(), "tables")?;
    let report = agent.json(&["off"])?;
    ensure!(report["warnings"] == Value::Array(Vec::new()), "{report}");
    nothing_is_left(&ns)?;
    ensure!(is_off(&agent)?["taken_back"] == true);
    still.lift()?;
    agent.expect(&["on"])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    Ok(())
}

/// A service manager hears all the time that the agent lives, and never that it ends.
#[test]
fn a_service_manager_sees_one_service() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.terminate()?;
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let socket = UnixDatagram::bind(dir.path().join("notify"))?;
    let mut command = agent.command(&[]);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "2000000");
    let proc = Proc::spawn(&ns, command)?;
    let until = |what: &str| -> Result<Vec<String>> {
        let begun = Instant::now();
        let mut all: Vec<String> = Vec::new();
        while begun.elapsed() < LIMIT {
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            let mut buffer = [0; 4096];
            if let Ok(length) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                all.extend(text.lines().map(str::to_owned));
                if all.iter().any(|line| line.starts_with(what)) {
                    return Ok(all);
                }
            }
        }
        anyhow::bail!("no {what}: {all:?}")
    };
    until("STATUS=enforces")?;
    agent.expect(&["off"])?;
    let mut heard = until("STATUS=off since ")?;
    for _ in 0..3 {
        heard.extend(until("WATCHDOG=1")?);
    }
    agent.expect(&["on"])?;
    heard.extend(until("STATUS=enforces")?);
    ensure!(!heard.iter().any(|line| line == "STOPPING=1"), "{heard:?}");
    ensure!(heard.iter().any(|line| line == "READY=1"), "{heard:?}");
    drop(proc);
    Ok(())
}

/// Many at once: each gets an answer, and the agent is off once.
#[test]
fn commands_at_the_same_time_agree() -> Result<()> {
    let (ns, agent) = start()?;
    let socket = agent.socket();
    let ask = |request: Request| -> Result<Value> {
        let mut client = Client::connect(&socket)?;
        client.set_patience(LIMIT)?;
        Ok(client.ask(&request)?)
    };
    let answers: Vec<Result<Value>> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || ask(Request::Off { reason: format!("reason {number}"), sudo_user: None }))
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    let answers: Vec<Value> = answers.into_iter().collect::<Result<_>>()?;
    let first = answers.iter().filter(|answer| answer["was_off"] == false).count();
    ensure!(first == 1 && answers.iter().all(|answer| answer["off"] == answers[0]["off"]), "{answers:#?}");
    nothing_is_left(&ns)
}
