//! Servers, each a process of its own, so that it can be frozen. The server of (d) accepts connections and holds them, and reads nothing;
//! another one greets.
use std::{io::Write as _, net::TcpListener, os::fd::OwnedFd, process::Command};

use anyhow::Context as _;
use nix::sys::socket::{Backlog, listen};

use nodefence_tests::{
    Netns, Proc,
    load::{own_files, per_worker},
};

use super::world::SERVER_PORT;

/// The argument that makes this program the server of (d).
pub(crate) const VERB: &str = "serve";
/// The argument that makes this program a greeting server.
pub(crate) const GREET: &str = "greet";

/// Starts the server of (d) inside `netns` and waits until it listens.
pub(super) fn start(netns: &Netns, flows: u32) -> anyhow::Result<Proc> {
    begin(netns, &[VERB, &flows.to_string()])
}

/// Starts a server that sends a byte to each connection and closes it.
pub(crate) fn greeting(netns: &Netns) -> anyhow::Result<Proc> {
    begin(netns, &[GREET])
}

fn begin(netns: &Netns, args: &[&str]) -> anyhow::Result<Proc> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Proc::spawn_ready(netns, command)
}

fn listener() -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(("0.0.0.0", SERVER_PORT))?;
    // std listens with a backlog of 4,096; the same call again raises it as far as somaxconn goes.
    listen(&listener, Backlog::MAXALLOWABLE)?;
    println!("listening");
    Ok(listener)
}

/// The work of a greeting server. Returns only on error.
pub(crate) fn greet() -> anyhow::Result<()> {
    let listener = listener()?;
    loop {
        let (mut stream, _) = listener.accept().context("cannot accept")?;
        // A client that is gone meanwhile needs no greeting.
        let _ = stream.write_all(b".");
    }
}

/// The work of the server of (d): holds up to `flows` connections. Returns only on error.
pub(crate) fn serve(flows: usize) -> anyhow::Result<()> {
    let each = per_worker()?;
    let listener = listener()?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..flows.div_ceil(each))
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    own_files()?;
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
