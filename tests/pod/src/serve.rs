//! The server: requests over TCP and UDP, and a probe over HTTP, all by one thread. It starts neither thread nor process for a connection, which an emulated
//! processor would feel.
//!
//! - TCP: a request is a line. Its answer is the same line with the names of pod and node behind it. A connection takes any number of requests.
//! - UDP: a request is a datagram. Its answer is the datagram with the two names behind it.
//! - HTTP: each request is answered with 200.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Write as _},
    net::{Ipv6Addr, TcpListener, UdpSocket},
    os::fd::AsFd,
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

use crate::stream::{Protocol, Stream};

/// The ports of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) tcp: u16,
    pub(crate) udp: u16,
    pub(crate) health: u16,
}

/// The names in the answers.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) pod: String,
    pub(crate) node: String,
}

impl Names {
    /// What stands behind the request in an answer.
    fn suffix(&self) -> String {
        format!(" {} {}", self.pod, self.node)
    }
}

/// What epoll tells about the sockets that are always there. Connections have greater numbers.
const END: u64 = 0;
const TCP: u64 = 1;
const UDP: u64 = 2;
const HEALTH: u64 = 3;
const FIRST_STREAM: u64 = 4;

struct Server {
    epoll: Epoll,
    tcp: TcpListener,
    health: TcpListener,
    udp: UdpSocket,
    suffix: String,
    streams: BTreeMap<u64, Stream>,
    next: u64,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(ports: Ports, names: &Names) -> Result<()> {
    let ends: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    ends.thread_block()?;
    let end = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC)?;
    let mut server = Server::new(ports, names.suffix())?;
    server.add(&end, END)?;
    println!("ready");
    io::stdout().flush()?;
    let mut events = [EpollEvent::empty(); 64];
    loop {
        let count = match server.epoll.wait(&mut events, EpollTimeout::NONE) {
            // A stopped process that goes on sees this (signal(7)).
            Err(Errno::EINTR) => continue,
            count => count?,
        };
        for event in events.iter().take(count) {
            match event.data() {
                END => return Ok(()),
                TCP => server.accept(Protocol::Lines),
                HEALTH => server.accept(Protocol::Http),
                UDP => server.datagrams(),
                stream => server.serve(stream),
            }
        }
    }
}

impl Server {
    fn new(ports: Ports, suffix: String) -> Result<Self> {
        let listener = |port: u16| -> Result<TcpListener> {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
            let listener = listener.with_context(|| format!("open TCP port {port}"))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let udp = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, ports.udp));
        let udp = udp.with_context(|| format!("open UDP port {}", ports.udp))?;
        udp.set_nonblocking(true)?;
        let this = Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            tcp: listener(ports.tcp)?,
            health: listener(ports.health)?,
            udp,
            suffix,
            streams: BTreeMap::new(),
            next: FIRST_STREAM,
        };
        this.add(&this.tcp, TCP)?;
        this.add(&this.udp, UDP)?;
        this.add(&this.health, HEALTH)?;
        Ok(this)
    }

    fn add(&self, socket: impl AsFd, number: u64) -> Result<()> {
        Ok(self.epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?)
    }

    /// Takes all connections that wait. An error concerns one connection, or a limit that may be over soon: the server goes on.
    fn accept(&mut self, protocol: Protocol) {
        loop {
            let listener = if protocol == Protocol::Lines { &self.tcp } else { &self.health };
            let Ok((stream, _)) = listener.accept() else { return };
            let Ok(stream) = Stream::new(stream, protocol) else { continue };
            if self.add(stream.socket(), self.next).is_ok() {
                self.streams.insert(self.next, stream);
                self.next += 1;
            }
        }
    }

    /// Answers the requests of a connection. Closes it once it has ended, which also takes it out of epoll's list.
    fn serve(&mut self, number: u64) {
        if let Some(stream) = self.streams.get_mut(&number)
            && !stream.serve(&self.suffix)
        {
            self.streams.remove(&number);
        }
    }

    fn datagrams(&self) {
        let mut buffer = [0; 1_500];
        loop {
            match self.udp.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    let mut answer = buffer.get(..len).unwrap_or_default().to_vec();
                    answer.extend_from_slice(self.suffix.as_bytes());
                    // An error is ignored: a datagram may get lost.
                    let _lost = self.udp.send_to(&answer, from);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The error of an earlier answer whose client is gone.
                Err(_) => {}
            }
        }
    }
}
