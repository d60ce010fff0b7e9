//! Relays TCP from a namespace to an address that only the machine's own namespace reaches.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

use anyhow::{Context as _, Result};

use crate::Netns;

/// Listens on `port` of the loopback device of `ns`. Joins each connection with one from the caller's namespace to `to`. The relay runs until the process ends.
pub(super) fn start(ns: &Netns, port: u16, to: SocketAddr) -> Result<()> {
    let listener = ns
        .run(move || TcpListener::bind((Ipv4Addr::LOCALHOST, port)))
        .with_context(|| format!("listen on port {port}"))?;
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            // An error is ignored: the client reports that its connection was closed.
            let _unreachable = TcpStream::connect(to).and_then(|far| join(near, far));
        }
    });
    Ok(())
}

fn join(near: TcpStream, far: TcpStream) -> io::Result<()> {
    for (mut from, mut into) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        thread::spawn(move || {
            let _broken = io::copy(&mut from, &mut into);
            let _closed = into.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
