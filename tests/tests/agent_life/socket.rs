//! The agent's socket: who may use it, what happens if something else has its path, and which requests are refused.
#![expect(unsafe_code, reason = "one test talks to the agent as another user")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::start;

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
    ensure!(fs::symlink_metadata(agent.socket()).is_err(), "the agent left its socket at its end");
    fs::write(agent.socket(), "mine")?;
    let mut command = agent.command(&[]);
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    ensure!(text.contains("agent.sock: cannot listen: something that is no socket lies there"), "{text}");
    ensure!(fs::read_to_string(agent.socket())? == "mine");
    Ok(())
}

/// A second agent has another run folder and the same socket. The agent that serves the socket goes on.
#[test]
fn a_socket_that_another_agent_serves_is_left() -> Result<()> {
    let (ns, agent) = start(&[])?;
    agent.flag("node-b")?;
    let other = agent.cluster_file().with_file_name("other");
    let mut command = agent.command(&["--run-dir", other.to_str().context("a path")?]);
    let output = ns.run(move || command.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(6), "{}: {text}", output.status);
    ensure!(text.contains("agent.sock: another agent listens there"), "{text}");
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    Ok(())
}

#[test]
fn the_socket_is_the_agents_own() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    let socket = agent.socket();
    let folder = socket.parent().context("no folder")?;
    ensure!(fs::metadata(&socket)?.mode() & 0o777 == 0o600);
    ensure!(fs::metadata(folder)?.mode() & 0o777 == 0o700);
    // If the permissions of folders and socket are opened to all, the agent still checks the user of its peer.
    for path in [folder.parent().context("no folder")?, folder, &socket] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    }
    // For the kernel credentials belong to a thread, so a thread of its own becomes the other user.
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
