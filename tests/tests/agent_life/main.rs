//! The life of an agent: one agent at a time, how it starts and ends, and what it leaves.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nodefence::{
    cli::Exit,
    report::{Client, Request},
};
use nodefence_tests::{
    Agent, Conn, Netns, Proc, bin, bin_path, client::wait_until, four_nodes, kernel, long, nodefence_command,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

mod adjust;
mod ends;
mod flood;
mod hangs;
mod journal;
mod service;
mod socket;
mod unread;
mod watchdog;

/// A generous limit, since the machine may be busy.
const READY: Duration = Duration::from_secs(60);

const FOUR: &str = "nodes:
- {name: node-a, address: 10.9.0.1}
- {name: node-b, address: 10.9.0.12, backends: [{address: 10.9.1.1}, {address: 10.9.1.2}]}
- {name: node-c, address: 10.9.0.13, backends: [{address: 10.9.2.1}]}
- {name: node-d, address: 10.9.0.14, backends: [{address: 10.9.3.1}]}
";

fn namespace() -> Result<Arc<Netns>> {
    four_nodes::namespace("agent")
}

fn start(more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let ns = namespace()?;
    let agent = Agent::start_with(&ns, "node-a", &["v0"], FOUR, more)?;
    Ok((ns, agent))
}

#[test]
fn a_second_agent_ends_with_a_message() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let pid = agent.proc()?.pid();
    let mut command = agent.command(&[]);
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(6), "{}: {text}", output.status);
    ensure!(text.contains(&format!("(process {pid})")) && text.contains("--take-over"), "{text}");
    ensure!(agent.json(&["status"])?["pid"] == pid.as_raw(), "the first agent is gone");
    Ok(())
}

/// After a hand-over the first agent accepts no flag: the successor has read the flags already, and would not learn of another one.
#[test]
fn nothing_is_flagged_once_the_flags_are_handed_over() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    let connect = || -> Result<BufReader<UnixStream>> {
        let stream = UnixStream::connect(agent.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(BufReader::new(stream))
    };
    let ask = |stream: &mut BufReader<UnixStream>, line: &[u8]| -> Result<String> {
        let mut answer = String::new();
        // The agent may have ended by then.
        if stream.get_mut().write_all(line).is_ok() {
            let _ended = stream.read_line(&mut answer);
        }
        Ok(answer)
    };
    let mut successor = connect()?;
    let mut operator = connect()?;
    ensure!(ask(&mut operator, b"{\"verb\":\"nodes\"}\n")?.contains("node-b"));
    ensure!(ask(&mut successor, b"{\"verb\":\"hand-over\"}\n")?.contains("ok"));
    let answer = ask(&mut operator, b"{\"verb\":\"flag\",\"node\":\"node-b\"}\n")?;
    ensure!(answer.is_empty() || answer.contains("handing over to another"), "{answer}");
    let flags = fs::read_to_string(agent.socket().with_file_name("flags.json"))?;
    ensure!(!flags.contains("node-b"), "{flags}");
    Ok(())
}

/// While `flags.json` cannot be written it still has a flag that was taken back. `unflag` and `status` say so, and the agent writes the file as soon as it can.
#[test]
fn a_flags_file_that_could_not_be_written_is_written_later() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    agent.flag("node-b")?;
    let file = agent.socket().with_file_name("flags.json");
    let in_the_way = file.with_extension("json.new");
    fs::create_dir(&in_the_way)?;
    let output = agent.cli(&["unflag", "node-b"])?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && text.contains("a restart of the agent loses the change"), "{text}");
    ensure!(fs::read_to_string(&file)?.contains("node-b"));
    ensure!(agent.json(&["status"])?["flags_problem"].is_string());
    fs::remove_dir(&in_the_way)?;
    wait_until("the file is written", Duration::from_secs(20), || {
        fs::read_to_string(&file).is_ok_and(|text| !text.contains("node-b"))
    })?;
    wait_until("status without the flags' problem", Duration::from_secs(20), || {
        agent.json(&["status"]).is_ok_and(|status| status["flags_problem"].is_null())
    })
    .map(drop)
}

/// Runs an agent that should end by itself. An agent that hangs is killed after 60 s, and has no exit code then.
fn failing(ns: &Netns, command: &Command) -> Result<(Option<i32>, String)> {
    let mut limited = bin_path::command(Path::new("timeout"));
    limited.args(["-s", "KILL", "60"]).arg(command.get_program()).args(command.get_args());
    limited.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The wait is outside of the namespace's thread, which others need meanwhile.
    let output = ns.run(move || limited.spawn())?.wait_with_output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn a_successor_that_cannot_start_leaves_the_first() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let first = agent.proc()?.pid();
    agent.expect(&["flag", "node-b", "--reason", "disk"])?;
    let elsewhere = agent.cluster_file().with_file_name("file");
    fs::write(&elsewhere, "mine")?;
    let no_bpf = agent.cluster_file().with_file_name("nodefence").join("v3");
    let path = |path: &std::path::Path| path.to_str().map(str::to_owned).context("path");
    let no_bpf = path(&no_bpf)?;
    let elsewhere = path(&elsewhere)?;
    for (more, says) in [
        (&["--pin-dir", no_bpf.as_str()][..], "not in a BPF filesystem"),
        (&["--socket", &elsewhere], "something that is no socket lies there"),
        (&["--node", "node-z"], "no such node"),
    ] {
        let command = agent.command(&[more, &["--take-over"]].concat());
        let (code, text) = failing(&ns, &command)?;
        ensure!(code == Some(1) && text.contains(says), "{more:?}: {code:?}: {text}");
        ensure!(agent.json(&["status"])?["pid"] == first.as_raw(), "{more:?}: the first agent is gone");
    }
    let (code, text) = failing(&ns, &agent.command(&["--interface", "nope0", "--take-over"]))?;
    ensure!(code == Some(1) && text.contains("--interface nope0: there is no such interface"), "{text}");
    let file = agent.socket().with_file_name("flags.json");
    fs::remove_file(&file)?;
    fs::create_dir(&file)?;
    let (code, text) = failing(&ns, &agent.command(&["--take-over"]))?;
    ensure!(code == Some(1) && text.contains("flags.json: is not a regular file"), "{text}");
    ensure!(agent.json(&["status"])?["pid"] == first.as_raw(), "the first agent is gone");
    ensure!(agent.node("node-b")?["action"] == "refuse");
    Ok(())
}

/// An agent that has no descriptors left reports that it could not look at its devices. It does not report attached devices as not attached.
#[test]
fn devices_that_cannot_be_looked_at_stay_attached() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let pid = agent.proc()?.pid();
    // The connection stays open, since an agent without descriptors accepts no other client.
    let mut client = Client::connect(&agent.socket())?;
    let mut status = || client.ask::<Value>(&Request::Status);
    status()?;
    let is_open = |number: &u64| fs::symlink_metadata(format!("/proc/{pid}/fd/{number}")).is_ok();
    // The kernel gives the lowest free descriptor. A look at the devices may be under way and hold some.
    let find = || (0..).find(|number| !is_open(number)).context("no descriptor is free");
    let mut free = find()?;
    wait_until("the lowest free descriptor stays the same", READY, || {
        std::thread::sleep(Duration::from_millis(200));
        let before = free;
        find().is_ok_and(|now| {
            free = now;
            now == before
        })
    })?;
    // The agent has inherited this process's hard limit.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = |current: Option<u64>| -> Result<Rlimit> {
        let agent = Pid::from_raw(pid.as_raw());
        Ok(prlimit(agent, Resource::Nofile, Rlimit { current, maximum })?)
    };
    let before = limit(Some(free))?;
    ns.ip("route add 10.9.77.0/24 via 10.9.0.77 dev v0")?;
    wait_until("a look at the devices fails", READY, || {
        status().is_ok_and(|status| status["routes_problem"].is_string())
    })
    .with_context(|| agent.log())?;
    let told = status()?;
    let why = told["routes_problem"].as_str().is_some_and(|why| why.contains("Too many open files"));
    ensure!(why && told["interfaces"][0]["tc"].is_string() && told["uncovered"] == 0, "{told}");
    // One more descriptor is enough for the command's connection. A look at the devices needs two.
    limit(Some(free + 1))?;
    ensure!(agent.expect(&["status"])?.contains("they could not be looked at"));
    limit(before.current)?;
    wait_until("a look at the devices succeeds", READY, || {
        status().is_ok_and(|status| status["routes_problem"].is_null())
    })
    .map(drop)
}

#[test]
fn nothing_is_attached_before_what_can_be_checked_is() -> Result<()> {
    let ns = namespace()?;
    let dir = tempfile::TempDir::with_prefix("nodefence-test-")?;
    let run = dir.path().join("run");
    let file = dir.path().join("cluster.yaml");
    fs::write(&file, FOUR)?;
    fs::create_dir(&run)?;
    fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let command = || -> Result<Command> {
        let mut command = nodefence_command()?;
        command.arg("--run-dir").arg(&run).args(["agent", "--node", "node-a", "--interface", "v0"]);
        command.arg("--cluster-file").arg(&file);
        Ok(command)
    };
    let untouched = |what: &str| -> Result<()> {
        let pins = ns.exec("find /sys/fs/bpf -path */nodefence*")?;
        ensure!(pins.is_empty(), "{what}: {pins}");
        Ok(())
    };
    fs::write(run.join("agent.sock"), "mine")?;
    let (code, text) = failing(&ns, &command()?)?;
    ensure!(code == Some(1) && text.contains("something that is no socket lies there"), "{code:?}: {text}");
    untouched("a file in the socket's place")?;
    fs::remove_file(run.join("agent.sock"))?;
    // The pipe has no writer: opening it must not hang.
    nix::unistd::mkfifo(&run.join("flags.json"), nix::sys::stat::Mode::S_IRWXU)?;
    let (code, text) = failing(&ns, &command()?)?;
    ensure!(code == Some(1) && text.contains("flags.json: is not a regular file"), "{code:?}: {text}");
    untouched("a pipe in the flags' place")
}

/// A command waits 15 s for an answer, which only [`long`] runs check. Other runs check the message and the exit code after one second.
#[test]
fn an_agent_that_stands_still_is_said_to() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    let mut client = Client::connect(&agent.socket())?;
    client.set_patience(Duration::from_secs(1))?;
    agent.proc()?.freeze()?;
    let error = client.ask::<Value>(&Request::Nodes).err().context("a stopped agent answered")?;
    let text = error.to_string();
    ensure!(text.contains("has not answered within 1s; is it stopped"), "{text}");
    ensure!(Exit::of(&error.into()) == Exit::Unreachable);
    if long() {
        let output = agent.cli(&["nodes"])?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(3), "{}: {text}", output.status);
        ensure!(text.contains("has not answered within 15s; is it stopped"), "{text}");
    }
    agent.proc()?.thaw()?;
    agent.expect(&["nodes"]).map(drop)
}

#[test]
fn a_terminated_agent_leaves_the_dataplane_and_detach_removes_it() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    let list = || ns.exec("find /sys/fs/bpf -path */nodefence*").map(|text| text.lines().count());
    let pins = list()?;
    ensure!(pins >= 9, "{pins} pins");
    agent.flag("node-b")?;
    let flags = agent.socket().with_file_name("flags.json");
    ensure!(flags.is_file());
    // `detach` is refused while an agent runs.
    let mut detach = nodefence_command()?;
    detach.arg("--run-dir").arg(agent.socket().parent().context("no folder")?).arg("detach");
    let output = ns.run(move || (detach.output(), detach));
    let (output, mut detach) = (output.0?, output.1);
    ensure!(output.status.code() == Some(6), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(text.contains("end it first") && !text.contains("--take-over"), "{text}");
    agent.terminate()?;
    ensure!(agent.log().contains("SIGTERM"), "{}", agent.log());
    ensure!(list()? == pins, "the agent removed pins at its end");
    let output = ns.run(move || detach.output())?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(String::from_utf8_lossy(&output.stdout).contains("removed"), "{output:?}");
    ensure!(list()? == 0, "{}", ns.exec("find /sys/fs/bpf")?);
    // `detach` removes the flags too, so the next agent starts without them.
    ensure!(!flags.exists(), "flags.json is still there after `detach`");
    ensure!(String::from_utf8_lossy(&output.stdout).contains("flags.json"), "{output:?}");
    Ok(())
}

#[test]
fn without_privilege() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    let mut command = bin_path::command(Path::new("setpriv"));
    // Root without capabilities can open its files, but cannot load programs.
    command.arg("--bounding-set=-all").arg("--inh-caps=-all");
    let agent = agent.command(&[]);
    command.arg(agent.get_program()).args(agent.get_args());
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    ensure!(text.contains("CAP_BPF") && text.contains("CAP_NET_ADMIN"), "{text}");
    // Kernels that count maps against RLIMIT_MEMLOCK refuse that limit first. Others refuse the load of a program.
    let counted = kernel::version()? < kernel::UNCOUNTED;
    ensure!(text.contains("RLIMIT_MEMLOCK") == counted, "{text}");
    Ok(())
}

/// In a container the agent is the first process of its PID namespace. The kernel delivers no signal to such a process for which it has no handler.
#[test]
fn a_signal_that_comes_while_it_starts_ends_it() -> Result<()> {
    let ns = namespace()?;
    let dir = tempfile::TempDir::with_prefix("nodefence-test-")?;
    let file = dir.path().join("cluster.yaml");
    let run_dir = dir.path().join("run");
    fs::write(&file, FOUR)?;
    let mut command = bin_path::command(Path::new("unshare"));
    command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc"]).arg(bin("nodefence")?);
    command.arg("--run-dir").arg(&run_dir).arg("agent").arg("--cluster-file").arg(&file);
    command.args(["--node", "node-a", "--interface", "v0", "--proxy", "none"]);
    command.arg("--socket").arg(run_dir.join("agent.sock"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut unshare = Proc::spawn(&ns, command)?;
    wait_until("the agent's lock file", READY, || run_dir.join("agent.lock").exists())?;
    let children = format!("/proc/{0}/task/{0}/children", unshare.pid());
    let first: i32 = fs::read_to_string(children)?.trim().parse()?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), Signal::SIGTERM)?;
    let status = unshare.wait(READY)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The agent detaches its program from a device that is renamed. The device's packets pass then, and `status` says so.
#[test]
fn a_device_that_is_renamed_is_detached_from() -> Result<()> {
    let (ns, agent) = start(&[])?;
    agent.flag("node-b")?;
    let backend = "10.9.1.1:80".parse()?;
    // ARP gets no answer here, and a packet to an unresolved neighbour never reaches the device.
    let resolved = |device: &str| {
        ns.ip(&format!("neigh add 10.9.1.1 lladdr 02:00:00:00:00:01 nud permanent dev {device}"))
    };
    resolved("v0")?;
    Conn::refused_at_once(&ns, backend, Duration::from_secs(1))?;
    ns.ip("link set v0 down\nlink set v0 name vx\nlink set vx up")?;
    resolved("vx")?;
    let attempt = || Conn::attempt(&ns, backend, Duration::from_millis(200)).conn;
    // A packet that passes gets no answer, since its destination does not exist.
    let passes = || attempt().is_err_and(|error| error.kind() == ErrorKind::TimedOut);
    wait_until("the device is detached from", READY, passes).with_context(|| agent.log())?;
    let devices = agent.json(&["status"])?["interfaces"].clone();
    let told = devices[0]["error"].as_str().is_some_and(|error| error.contains("no interface named v0"));
    ensure!(told && devices[0]["tc"].is_null(), "{devices}");
    Ok(())
}

#[test]
fn a_run_folder_that_is_removed_ends_the_agent_which_writes_its_flags_first() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    let run_dir = agent.socket().parent().context("no folder")?.to_owned();
    fs::remove_dir_all(&run_dir)?;
    wait_until("the agent has ended", Duration::from_secs(20), || agent.log().contains("the agent ends;"))
        .with_context(|| agent.log())?;
    let log = agent.log();
    ensure!(log.contains("was removed, or all of its folder; start the agent anew"), "{log}");
    agent.terminate()?;
    let saved = fs::read_to_string(run_dir.join("flags.json"))?;
    ensure!(saved.contains("node-b"), "{saved}");
    agent.restart(&[])?;
    let node = agent.node("node-b")?;
    ensure!(!node["flag"].is_null(), "{node}");
    agent.unflag("node-b")
}
