//! Makes new connections at a steady rate. Each connection gets a byte from the server and is then closed by a RST, so that no state of it stays.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, connect, getsockopt, recv,
            setsockopt, socket, sockopt,
        },
    },
};

use super::{own_files, per_worker};
use crate::Netns;

/// The source ports of each address.
const PORTS: std::ops::Range<u16> = 2_000..27_000;
/// The interval at which due connections are made.
const SLICE: Duration = Duration::from_millis(1);
/// A connection without an answer after this time counts as silent.
const PATIENCE: Duration = Duration::from_secs(3);

/// The outcomes of the connections.
#[derive(Debug, Default)]
pub struct Seen {
    /// Milliseconds from `connect` to the answer, for each answered connection.
    pub took: Vec<f64>,
    /// The number of connections that were refused or reset.
    pub failed: u32,
    /// The number of connections that were not answered in time.
    pub silent: u32,
    /// The number of connections made in a second.
    pub rate: f64,
}

struct Open {
    socket: OwnedFd,
    begun: Instant,
}

/// Makes `rate` connections a second for `length` from these addresses in turn. Waits for the outcome of the last one. A port of an address is used again after
/// 25,000 connections from that address.
///
/// # Errors
/// Fails if no socket is free, or if more connections are under way than a process may have files.
pub fn run(netns: &Netns, from: &[Ipv4Addr], to: SocketAddrV4, rate: u32, length: Duration) -> Result<Seen> {
    netns.within(|| {
        own_files()?;
        let most = per_worker()?;
        let to = SockaddrIn::from(to);
        let mut ports =
            PORTS.flat_map(|port| from.iter().map(move |host| SocketAddrV4::new(*host, port))).cycle();
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let mut open: Vec<Option<Open>> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        let mut seen = Seen::default();
        let mut made = 0_u32;
        let mut under_way = 0_usize;
        let started = Instant::now();
        let mut events = vec![EpollEvent::empty(); 1024];
        let mut swept = started;
        loop {
            let elapsed = started.elapsed();
            let due = (elapsed.min(length).as_secs_f64() * f64::from(rate)) as u32;
            while made < due {
                ensure!(under_way < most, "{under_way} connections are under way");
                let socket = begin(ports.next().context("no address")?)?;
                let at = free.pop().unwrap_or_else(|| {
                    open.push(None);
                    open.len() - 1
                });
                let begun = Instant::now();
                match connect(socket.as_raw_fd(), &to) {
                    Ok(()) | Err(Errno::EINPROGRESS) => {}
                    Err(error) => return Err(error).context("cannot connect"),
                }
                epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, at as u64))?;
                open[at] = Some(Open { socket, begun });
                made += 1;
                under_way += 1;
            }
            if elapsed >= length && under_way == 0 {
                break;
            }
            let ready = match epoll.wait(&mut events, EpollTimeout::from(SLICE.as_millis() as u8)) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let now = Instant::now();
            for event in &events[..ready] {
                let at = event.data() as usize;
                let Some(one) = open[at].take() else { continue };
                if answered(&one)? {
                    seen.took.push(now.duration_since(one.begun).as_secs_f64() * 1e3);
                } else {
                    seen.failed += 1;
                }
                free.push(at);
                under_way -= 1;
            }
            if now.duration_since(swept) > PATIENCE / 10 {
                swept = now;
                for (at, slot) in open.iter_mut().enumerate() {
                    if slot.as_ref().is_some_and(|one| now.duration_since(one.begun) > PATIENCE) {
                        *slot = None;
                        free.push(at);
                        seen.silent += 1;
                        under_way -= 1;
                    }
                }
            }
        }
        seen.rate = f64::from(made) / length.as_secs_f64();
        Ok(seen)
    })
}

fn begin(from: SocketAddrV4) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    // The close sends a RST, so that neither side has state left.
    setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(from)).context("cannot bind a client's socket")?;
    Ok(socket)
}

fn answered(one: &Open) -> Result<bool> {
    if getsockopt(&one.socket, sockopt::SocketError)? != 0 {
        return Ok(false);
    }
    let mut byte = [0];
    match recv(one.socket.as_raw_fd(), &mut byte, MsgFlags::empty()) {
        Ok(1) => Ok(true),
        Ok(_) | Err(Errno::ECONNRESET | Errno::ECONNREFUSED) => Ok(false),
        Err(error) => Err(error).context("cannot read an answer"),
    }
}
