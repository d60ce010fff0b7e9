//! Clients of the test servers. A client's socket is made in a namespace and can then be used from any thread.

mod outcome;
mod udp;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{SockaddrStorage, connect},
};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, socket_with};

pub use outcome::Outcome;
pub use udp::UdpConn;

use crate::{Netns, tcp_info, watch};

/// How long [`Conn::settle`] waits for an acknowledgement, which must come on a path that works.
const SETTLED: Duration = Duration::from_secs(10);
/// A connect that took less than this time did not wait for a second SYN. A SYN without an answer is sent again after a second (RFC 6298 section 2.1).
pub const FIRST_SYN: Duration = Duration::from_millis(900);

/// Bytes that depend on their position, so that a shifted, lost or doubled piece does not compare equal.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Protocols other than TCP whose sockets are used like TCP's.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    /// SCTP: an association that is used like a connection ("one-to-one").
    Sctp,
    /// Multipath TCP.
    Mptcp,
}

impl Over {
    /// The protocol argument of [`socket_with`].
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Sctp => ipproto::SCTP,
            Self::Mptcp => ipproto::MPTCP,
        }
    }
}

/// A connection to a `nodefence-peer`, over TCP or another protocol ([`Over`]).
#[derive(Debug)]
pub struct Conn {
    /// The socket.
    pub stream: TcpStream,
}

impl Conn {
    /// Connects from `ns` within `limit`. Reads and writes get the same limit.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub fn connect(ns: &Netns, to: SocketAddr, limit: Duration) -> std::io::Result<Self> {
        Self::attempt(ns, to, limit).conn
    }

    /// Same as [`Conn::connect`], but returns all about the attempt.
    pub fn attempt(ns: &Netns, to: SocketAddr, limit: Duration) -> Attempt {
        let began = Instant::now();
        let opened = open(ns, to, limit, None).and_then(|(stream, connected)| {
            // The counter is valid for a failed connection too: the kernel clears it only once the socket is closed or connected once more (`tcp_disconnect`,
            // net/ipv4/tcp.c).
            Ok((tcp_info::retransmitted(&stream)?, stream, connected))
        });
        let took = began.elapsed();
        let still = watch::longest_gap(began);
        match opened {
            Ok((again, stream, connected)) => {
                let conn = connected.and_then(|()| stream.set_nodelay(true)).map(|()| Self { stream });
                Attempt { conn, again, took, still }
            }
            Err(error) => Attempt { conn: Err(error), again: 0, took, still },
        }
    }

    /// Checks that the first SYN of a new connection is refused.
    ///
    /// # Errors
    /// Fails if the first SYN got another answer, or if a later SYN was refused.
    pub fn refused_at_once(ns: &Netns, to: SocketAddr, limit: Duration) -> Result<()> {
        let attempt = Self::attempt(ns, to, limit);
        attempt.at_first_syn().with_context(|| format!("new connection to {to}"))?;
        match attempt.conn.map(drop).map_err(|error| error.kind()) {
            Err(ErrorKind::ConnectionRefused) => Ok(()),
            other => bail!("new connection to {to}: {other:?} in place of a refusal"),
        }
    }

    /// Checks that a request on a new connection is answered without a retransmission. Returns the name of the backend.
    ///
    /// # Errors
    /// Fails if the request was not answered, or if a segment was sent again.
    pub fn answered_at_once(ns: &Netns, to: SocketAddr, limit: Duration) -> Result<String> {
        let begun = Instant::now();
        let mut conn = Self::connect(ns, to, limit)?;
        let name = conn.who()?;
        let again = tcp_info::retransmitted(&conn.stream)?;
        if again > 0 {
            let took = begun.elapsed();
            let text = format!("{to}: answered by {name} after {took:?}, with {again} segments sent again");
            return Err(watch::missed(tcp_info::FIRST_SEGMENT, text));
        }
        Ok(name)
    }

    /// Connects until the balancer has picked the backend `name`.
    ///
    /// # Errors
    /// Fails if a connection fails or is refused, or if 200 connections all went elsewhere.
    pub fn connect_to(ns: &Netns, to: SocketAddr, name: &str, limit: Duration) -> Result<Self> {
        Self::until(to, name, || Self::connect(ns, to, limit))
    }

    /// Same as [`Conn::connect_to`], but other backends may refuse, since their nodes are flagged.
    ///
    /// # Errors
    /// Fails as [`Conn::connect_to`] does, except for refusals.
    pub fn connect_beside_flagged(ns: &Netns, to: SocketAddr, name: &str, limit: Duration) -> Result<Self> {
        Self::until(to, name, || {
            let attempts = (0..200).map(|_| Self::connect(ns, to, limit));
            let mut others = attempts.skip_while(|attempt| {
                attempt.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            });
            others.next().unwrap_or_else(|| Err(ErrorKind::ConnectionRefused.into()))
        })
    }

    /// Same as [`Conn::connect`], over another protocol than TCP.
    ///
    /// # Errors
    /// Fails as [`Conn::connect`] does, or if the kernel lacks the protocol.
    pub fn over(over: Over, ns: &Netns, to: SocketAddr, limit: Duration) -> std::io::Result<Self> {
        let (stream, connected) = open(ns, to, limit, Some(over.protocol()))?;
        connected.map(|()| Self { stream })
    }

    /// Same as [`Conn::connect_to`], over another protocol than TCP.
    ///
    /// # Errors
    /// Fails as [`Conn::connect_to`] does, or if the kernel lacks the protocol.
    pub fn over_to(over: Over, ns: &Netns, to: SocketAddr, name: &str, limit: Duration) -> Result<Self> {
        Self::until(to, name, || Self::over(over, ns, to, limit))
    }

    fn until(to: SocketAddr, name: &str, connect: impl Fn() -> std::io::Result<Self>) -> Result<Self> {
        for _ in 0..200 {
            let mut conn = connect().with_context(|| format!("connect to {to}"))?;
            if conn.who().with_context(|| format!("ask {to} for its name"))? == name {
                return Ok(conn);
            }
        }
        bail!("200 connections to {to} and none went to {name}")
    }

    /// Sets the time limit of reads and writes. `None` means no limit.
    ///
    /// # Errors
    /// Fails if the duration is zero.
    pub fn limit(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.stream.set_read_timeout(limit)?;
        self.stream.set_write_timeout(limit)
    }

    /// Asks the backend behind this connection for its name.
    ///
    /// # Errors
    /// Fails with the socket's error. At the limit that is `TimedOut` or `WouldBlock`.
    pub fn who(&mut self) -> std::io::Result<String> {
        self.stream.write_all(b"w")?;
        let mut name = Vec::new();
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            if byte[0] == b'\n' {
                return Ok(String::from_utf8_lossy(&name).into_owned());
            }
            name.push(byte[0]);
        }
    }

    /// Makes one small request and returns its outcome.
    pub fn request(&mut self) -> Outcome {
        Outcome::from_result(self.who())
    }

    /// Sends bytes and reads them back.
    ///
    /// # Errors
    /// Fails with the socket's error, or with `InvalidData` if other bytes came back.
    pub fn echo(&mut self, payload: &[u8]) -> std::io::Result<()> {
        let mut request = header(b'e', payload.len());
        request.extend_from_slice(payload);
        self.stream.write_all(&request)?;
        let mut back = vec![0; payload.len()];
        self.stream.read_exact(&mut back)?;
        if back == payload { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// Announces an upload of `len` bytes, which the caller writes to `stream`. The server answers `k` once it has all of them.
    ///
    /// # Errors
    /// Fails with the socket's error.
    pub fn start_upload(&mut self, len: usize) -> std::io::Result<()> {
        self.stream.write_all(&header(b's', len))
    }

    /// Downloads `len` bytes of [`pattern`] and compares them.
    ///
    /// # Errors
    /// Fails with the socket's error, or with `InvalidData` if other bytes came.
    pub fn download(&mut self, len: usize) -> std::io::Result<()> {
        self.stream.write_all(&header(b'd', len))?;
        let mut got = vec![0; len];
        self.stream.read_exact(&mut got)?;
        if got == pattern(len) { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// Sends a request that is never answered (a long poll).
    ///
    /// # Errors
    /// Fails with the socket's error.
    pub fn long_poll(&mut self) -> std::io::Result<()> {
        self.stream.write_all(b"p")
    }

    /// Waits until all that was sent over TCP is acknowledged. From then on the connection sends nothing by itself, whatever happens to the path.
    ///
    /// # Errors
    /// Fails if something is still unacknowledged after ten seconds.
    pub fn settle(&self) -> anyhow::Result<()> {
        let settled = || tcp_info::unacknowledged(&self.stream).is_ok_and(|segments| segments == 0);
        wait_until("all that was sent is acknowledged", SETTLED, settled).map(drop)
    }

    /// Waits for the end of the connection without sending and without a time limit.
    ///
    /// # Errors
    /// Fails with the error by which the connection ended. Succeeds if the other end closed the connection in order, or sent something.
    pub fn wait_for_ever(&mut self) -> std::io::Result<()> {
        self.stream.set_read_timeout(None)?;
        loop {
            match self.stream.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                ended => return ended.map(drop),
            }
        }
    }

    /// Waits for the end of the connection without sending, for at most `limit`.
    pub fn wait_end(&mut self, limit: Duration) -> Outcome {
        if self.stream.set_read_timeout(Some(limit)).is_err() {
            return Outcome::Other;
        }
        let mut byte = [0];
        loop {
            return match self.stream.read(&mut byte) {
                Ok(0) => Outcome::Other,
                Ok(_) => Outcome::Answered,
                // A read with a time limit fails with EINTR after the process was stopped and continued (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Outcome::of(&error),
            };
        }
    }
}

/// Makes a socket in `ns` and connects it. Returns the socket even where the connect failed.
fn open(
    ns: &Netns,
    to: SocketAddr,
    limit: Duration,
    protocol: Option<Protocol>,
) -> std::io::Result<(TcpStream, std::io::Result<()>)> {
    // Only the socket is made in the namespace's thread, so that a connect that waits delays no other work of that thread.
    let domain = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = TcpStream::from(ns.run(move || socket_with(domain, SocketType::STREAM, flags, protocol))?);
    let connected = connected(&stream, to, limit);
    Ok((stream, connected))
}

fn connected(stream: &TcpStream, to: SocketAddr, limit: Duration) -> std::io::Result<()> {
    match connect(stream.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => {
            let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
            if poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], limit)? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Err(error) => return Err(error.into()),
    }
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

/// How a new connection went.
#[derive(Debug)]
pub struct Attempt {
    /// The connection, or the error of the connect.
    pub conn: std::io::Result<Conn>,
    /// How often the SYN was sent again.
    pub again: u32,
    /// How long the attempt took.
    pub took: Duration,
    /// The longest time that the machine stood still without a break meanwhile. Many short stops cause no retransmission of a SYN.
    pub still: Duration,
}

impl Attempt {
    /// Checks that the first SYN got the answer.
    ///
    /// A quick second SYN is allowed. A server may still have a connection of the same ports, whose client was reset. That server answers the SYN by an
    /// acknowledgement. Then the client resets that connection and sends its SYN again after two ticks (`tcp_rcv_synsent_state_process`, net/ipv4/tcp_input.c,
    /// since 5.6), with or without nodefence.
    ///
    /// # Errors
    /// Fails if the SYN was sent again for want of an answer. A machine that stood still without a break for as long as that takes excuses this.
    pub fn at_first_syn(&self) -> Result<()> {
        if self.again > 0 && self.took >= FIRST_SYN && self.still < FIRST_SYN {
            let text = format!(
                "a SYN was sent {} times again: {:?} after {:?}; the machine stood still for {:?} at once meanwhile",
                self.again,
                self.conn.as_ref().map(drop),
                self.took,
                self.still
            );
            return Err(watch::overdue(FIRST_SYN, text));
        }
        Ok(())
    }

    /// Makes one request on the connection. Returns its outcome and the name of the backend.
    pub fn request(self) -> (Outcome, Option<String>) {
        match self.conn.and_then(|mut conn| conn.who()) {
            Ok(name) => (Outcome::Answered, Some(name)),
            Err(error) => (Outcome::of(&error), None),
        }
    }
}

fn header(op: u8, len: usize) -> Vec<u8> {
    let mut header = vec![op];
    header.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    header
}

/// Makes a new connection and one request on it. Each step has the limit `limit`. Returns the outcome and the name of the backend.
pub fn try_new(ns: &Netns, to: SocketAddr, limit: Duration) -> (Outcome, Option<String>) {
    Conn::attempt(ns, to, limit).request()
}

/// Calls `ready` every 10 ms until it says yes. Returns how long that took.
///
/// # Errors
/// Fails if `ready` still says no after `limit`.
pub fn wait_until(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<Duration> {
    let start = Instant::now();
    loop {
        if ready() {
            return Ok(start.elapsed());
        }
        if start.elapsed() > limit {
            return Err(watch::missed(limit, format!("{what}: not within {limit:?}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
