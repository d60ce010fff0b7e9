//! One agent at a time, and what stays when it ends.

#![expect(unsafe_code, reason = "one test talks to the agent as another user")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{Agent, Netns, Proc, bin, client::wait_until};
use serde_json::Value;

const FOUR: &str = "nodes:
- {name: node-a, address: 10.9.0.1}
- {name: node-b, address: 10.9.0.12, backends: [{address: 10.9.1.1}, {address: 10.9.1.2}]}
- {name: node-c, address: 10.9.0.13, backends: [{address: 10.9.2.1}]}
- {name: node-d, address: 10.9.0.14, backends: [{address: 10.9.3.1}]}
";

fn namespace() -> Result<Arc<Netns>> {
    let ns = Arc::new(Netns::new("agent")?);
    ns.ip("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.9.0.1/16 dev v0")?;
    Ok(ns)
}

fn start(more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let ns = namespace()?;
    let agent = Agent::start_with(&ns, "node-a", &["v0"], FOUR, more)?;
    Ok((ns, agent))
}

fn json(agent: &Agent, args: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&agent.expect(&[args, &["-o", "json"]].concat())?)?)
}

fn node(agent: &Agent, name: &str) -> Result<Value> {
    let nodes = json(agent, &["nodes"])?;
    let node = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == name));
    node.cloned().with_context(|| format!("no node {name}"))
}

/// The command of another agent over the same folders.
fn another(agent: &Agent, more: &[&str]) -> Result<Command> {
    let run_dir = agent.socket().parent().context("no folder")?.to_owned();
    let mut command = Command::new(bin("nodefence")?);
    command.arg("--run-dir").arg(run_dir).arg("agent").arg("--cluster-file").arg(agent.cluster_file());
    command.args(["--node", "node-a", "--interface", "v0"]).args(more);
    Ok(command)
}

#[test]
fn a_second_agent_ends_with_a_message() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let pid = agent.proc()?.pid();
    let mut command = another(&agent, &[])?;
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(6), "{}: {text}", output.status);
    ensure!(text.contains(&format!("(process {pid})")) && text.contains("--take-over"), "{text}");
    ensure!(json(&agent, &["status"])?["pid"] == pid.as_raw(), "the first one is gone");
    Ok(())
}

#[test]
fn a_take_over_ends_the_first() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let first = agent.proc()?.pid();
    agent.expect(&["flag", "node-b", "--for", "1h", "--reason", "disk"])?;
    let mut second = another(&agent, &["--take-over"])?;
    second.stderr(Stdio::null());
    let second = Proc::spawn(&ns, second)?;
    wait_until("the second answers", Duration::from_secs(20), || {
        json(&agent, &["status"]).is_ok_and(|status| status["pid"] == second.pid().as_raw())
    })?;
    let b = node(&agent, "node-b")?;
    ensure!(b["action"] == "refuse" && b["flag"]["reason"] == "disk", "{b}");
    let stat = fs::read_to_string(format!("/proc/{first}/stat"));
    // Ended; its parent (this test) has not waited for it yet.
    ensure!(stat.map_or(true, |stat| stat.contains(") Z ")), "the first still runs");
    ensure!(agent.log().contains("another agent takes over"), "{}", agent.log());
    Ok(())
}

#[test]
fn a_stale_socket_is_replaced() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    agent.kill();
    ensure!(fs::symlink_metadata(agent.socket()).is_ok(), "SIGKILL left no socket to be stale");
    let output = agent.cli(&["status"])?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(3), "{}: {text}", output.status);
    ensure!(text.contains("no agent answers at") && text.contains("agent.sock"), "{text}");
    agent.restart(&[])?;
    agent.expect(&["status"]).map(drop)
}

#[test]
fn something_else_in_the_sockets_place_is_left() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    ensure!(fs::symlink_metadata(agent.socket()).is_err(), "an orderly end removes the socket");
    fs::write(agent.socket(), "mine")?;
    let mut command = another(&agent, &[])?;
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    ensure!(text.contains("agent.sock: cannot listen: something that is no socket lies there"), "{text}");
    ensure!(fs::read_to_string(agent.socket())? == "mine");
    Ok(())
}

#[test]
fn the_socket_is_the_agents_own() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    let socket = agent.socket();
    let folder = socket.parent().context("no folder")?;
    ensure!(fs::metadata(&socket)?.mode() & 0o777 == 0o600);
    ensure!(fs::metadata(folder)?.mode() & 0o777 == 0o700);
    // Even where somebody opened both doors, the peer's user is looked at.
    for path in [folder.parent().context("no folder")?, folder, &socket] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    }
    // Credentials belong to the thread as far as the kernel is concerned.
    let answer = std::thread::spawn(move || -> Result<String> {
        become_nobody()?;
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"{\"verb\":\"status\"}\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    });
    let answer = answer.join().map_err(|_| anyhow!("the thread panicked"))??;
    ensure!(answer.contains("user 65534 may not command the agent"), "{answer}");
    Ok(())
}

fn become_nobody() -> Result<()> {
    // SAFETY: three integers; the raw call changes the calling thread alone.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
    ensure!(result == 0, "setresuid: {}", std::io::Error::last_os_error());
    Ok(())
}

#[test]
fn what_is_no_request_is_refused() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    let ask = |line: &[u8]| -> Result<String> {
        let mut stream = UnixStream::connect(agent.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // The agent may hang up before it has read all.
        let _hung_up = stream.write_all(line);
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    for line in
        [&b"hello\n"[..], b"{\"verb\":\"dance\"}\n", b"{\"verb\":\"unflag\",\"node\":\"node-b\",\"x\":1}\n"]
    {
        let answer = ask(line)?;
        ensure!(answer.contains("\"invalid\"") && answer.contains("no request"), "{answer}");
    }
    let long = [vec![b'x'; 70_000], b"\n".to_vec()].concat();
    let answer = ask(&long)?;
    ensure!(answer.contains("at most 65536 bytes"), "{answer}");
    agent.expect(&["status"]).map(drop)
}

#[test]
fn a_terminated_agent_leaves_the_dataplane_and_detach_removes_it() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    let list = || ns.exec("find /sys/fs/bpf -path */nodefence*").map(|text| text.lines().count());
    let pins = list()?;
    ensure!(pins >= 9, "{pins} pins");
    // Not while an agent runs.
    let mut detach = Command::new(bin("nodefence")?);
    detach.arg("--run-dir").arg(agent.socket().parent().context("no folder")?).arg("detach");
    let output = ns.run(move || (detach.output(), detach));
    let (output, mut detach) = (output.0?, output.1);
    ensure!(output.status.code() == Some(6), "{output:?}");
    agent.terminate()?;
    ensure!(agent.log().contains("SIGTERM"), "{}", agent.log());
    ensure!(list()? == pins, "an orderly end took pins away");
    let output = ns.run(move || detach.output())?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(String::from_utf8_lossy(&output.stdout).contains("removed"), "{output:?}");
    ensure!(list()? == 0, "{}", ns.exec("find /sys/fs/bpf")?);
    Ok(())
}

#[test]
fn without_privilege() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    let mut command = Command::new("setpriv");
    // Root without any capability: files are reachable, the kernel is not.
    command.arg("--bounding-set=-all").arg("--inh-caps=-all");
    let agent = another(&agent, &[])?;
    command.arg(agent.get_program()).args(agent.get_args());
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    ensure!(text.contains("CAP_BPF") && text.contains("CAP_NET_ADMIN"), "{text}");
    Ok(())
}

#[test]
fn ctrl_c_ends_it_too() -> Result<()> {
    let (ns, agent) = start(&[])?;
    drop(agent);
    let again = Agent::start(&ns, "node-a", &["v0"], FOUR)?;
    again.proc()?.signal(Signal::SIGINT)?;
    wait_until("the end", Duration::from_secs(10), || again.log().contains("SIGINT")).map(drop)
}
