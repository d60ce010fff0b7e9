//! A TCP connection that sends all the time until it is reset.
use std::{
    io::Read as _,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::Context as _;
use nodefence_tests::{Netns, load::until_reset::Sending};

use super::view::PORT;
use crate::cpus;

/// The pause between two bytes, which is the resolution of a latency.
pub(super) const PACE: Duration = Duration::from_micros(20);
/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server keeps a silent connection. Its client was reset, and the server does not learn that.
const SILENCE: Duration = Duration::from_secs(30);
/// The pause between two reads of a server. A server that wakes up for each byte would take the processor from the agent.
const TAKE: Duration = Duration::from_millis(2);

/// Starts a server on all addresses of a namespace. It reads all bytes and answers none.
pub(super) fn serve(netns: &Netns) -> anyhow::Result<()> {
    let listener = netns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
    // The server ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || take(stream));
        }
    });
    Ok(())
}

fn take(mut stream: TcpStream) {
    let mut buffer = vec![0; 256 * 1024];
    if stream.set_read_timeout(Some(SILENCE)).is_err() {
        return;
    }
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {
        std::thread::sleep(TAKE);
    }
}

/// Starts a connection from a namespace. Its thread sends on a processor of its own.
pub(super) fn start(netns: &Netns, to: Ipv4Addr, cpu: usize) -> anyhow::Result<Sending> {
    let address = SocketAddr::from((to, PORT));
    let stream = netns
        .run(move || TcpStream::connect_timeout(&address, PATIENCE))
        .with_context(|| format!("connect to {address}"))?;
    // No other work on that CPU may delay the RST.
    Sending::start(stream, PACE, move || {
        cpus::stay_on(&[cpu])?;
        cpus::before_all()
    })
}
