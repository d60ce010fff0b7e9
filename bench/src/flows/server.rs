//! Servers: a process of its own each, so that it can be frozen. That of (d) accepts and holds, and reads nothing; another one greets.
use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{Backlog, listen},
    },
    unistd::Pid,
};

use super::{SERVER_PORT, client};
use crate::netns::Netns;

/// What this program is called with to be the server of (d).
pub(crate) const VERB: &str = "serve";
/// What it is called with to be one that greets.
pub(crate) const GREET: &str = "greet";
const READY: &str = "listening";

/// The server's process; killed when dropped.
pub(crate) struct Server(Child);

/// Starts it inside `netns` and waits until it listens.
pub(super) fn start(netns: &Netns, flows: u32) -> anyhow::Result<Server> {
    begin(netns, &[VERB, &flows.to_string()])
}

/// Starts one that sends a byte to each connection and lets it go.
pub(crate) fn greeting(netns: &Netns) -> anyhow::Result<Server> {
    begin(netns, &[GREET])
}

fn begin(netns: &Netns, args: &[&str]) -> anyhow::Result<Server> {
    let program = std::env::current_exe()?;
    let mut child = netns.within(|| {
        Command::new(program)
            .args(args)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the server")
    })?;
    let output = child.stdout.take().context("stdout was piped")?;
    let server = Server(child);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    anyhow::ensure!(line.trim() == READY, "the server did not come up");
    Ok(server)
}

impl Server {
    /// Stops the process; its kernel goes on answering.
    pub(crate) fn freeze(&self) -> anyhow::Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGSTOP)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listener() -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(("0.0.0.0", SERVER_PORT))?;
    // std listens with a backlog of 4,096; the same call again raises it as far as somaxconn goes.
    listen(&listener, Backlog::MAXALLOWABLE)?;
    println!("{READY}");
    Ok(listener)
}

/// The work of one that greets: returns only on error.
pub(crate) fn greet() -> anyhow::Result<()> {
    let listener = listener()?;
    loop {
        let (mut stream, _) = listener.accept().context("cannot accept")?;
        // Whoever has gone meanwhile needs no greeting.
        let _ = stream.write_all(b".");
    }
}

/// The work of the server of (d): holds up to `flows` and returns only on error.
pub(crate) fn serve(flows: usize) -> anyhow::Result<()> {
    let each = client::per_worker()?;
    let listener = listener()?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..flows.div_ceil(each))
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    client::own_files()?;
                    let mut held: Vec<OwnedFd> = Vec::with_capacity(each);
                    while held.len() < each {
                        held.push(listener.accept().context("cannot accept")?.0.into());
                    }
                    loop {
                        std::thread::park();
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a worker of the server panicked"))??;
        }
        Ok(())
    })
}
