//! Datagrams: a stream of numbered datagrams, each of which is accounted for, and datagrams that only make flows come and go.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use super::{Running, repeat};
use crate::{Netns, client::wait_until};

const PORT: u16 = 9000;
/// After this time without a datagram, none is under way: delivery over veth takes only a softirq.
const QUIET: Duration = Duration::from_millis(200);

/// A steady stream of datagrams from one address to some others.
#[derive(Debug)]
pub struct Numbered {
    /// How many datagrams were sent to each address.
    sent: Arc<AtomicU64>,
    sender: Running<u64>,
    receivers: Running<Vec<u64>>,
}

impl Numbered {
    /// Starts to send from an address of one namespace to addresses of another namespace in turn, about 5,000 datagrams a second to each.
    ///
    /// # Errors
    /// Fails if no socket is free.
    pub fn start(near: &Netns, from: Ipv4Addr, far: &Netns, to: &[Ipv4Addr]) -> Result<Self> {
        let mut receivers = Running::default();
        for address in to {
            let at = SocketAddr::from((*address, PORT));
            let socket = far.run(move || bound(at))?;
            // The buffer is large, so that no datagram is lost for want of room while this machine is busy.
            setsockopt(&socket, RcvBufForce, &(64 << 20))?;
            socket.set_read_timeout(Some(QUIET))?;
            receivers.start(move |stop| receive(&socket, stop));
        }
        let sent = Arc::new(AtomicU64::new(0));
        let socket = near.run(move || UdpSocket::bind((from, 0)))?;
        let count = Arc::clone(&sent);
        let to = to.to_vec();
        let mut sender = Running::default();
        sender.start(move |stop| {
            repeat(stop, || {
                let begun = Instant::now();
                let number = count.load(Ordering::Relaxed);
                for address in &to {
                    // An error is ignored: a datagram to a flagged address is refused here, and only arrivals count.
                    let _ = socket.send_to(&number.to_ne_bytes(), (*address, PORT));
                }
                count.fetch_add(1, Ordering::Relaxed);
                // The sender rests for at least three quarters of the time, since the code under test needs most of an emulated processor.
                Ok(Duration::from_micros(150).max(begun.elapsed() * 3))
            })
        });
        Ok(Self { sent, sender, receivers })
    }

    /// Waits until `more` more datagrams were sent to each address.
    ///
    /// # Errors
    /// Fails if the sender stands still.
    pub fn pass(&self, more: u64) -> Result<()> {
        let until = self.sent() + more;
        let patience = Instant::now() + Duration::from_secs(60);
        while self.sent() < until {
            ensure!(Instant::now() < patience, "the sender stands still");
            // In this time about five datagrams are sent to each address.
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// How many datagrams were sent to each address so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends the stream. Returns the arrivals at each address.
    ///
    /// # Errors
    /// Fails if an arrived datagram had another length.
    pub fn finish(self) -> Result<Vec<Arrived>> {
        let sent = self.sender.finish()?.into_iter().sum();
        let arrived = self.receivers.finish()?;
        Ok(arrived.into_iter().map(|numbers| Arrived { sent, numbers }).collect())
    }
}

/// The datagrams that arrived at one address.
#[derive(Debug)]
pub struct Arrived {
    /// How many datagrams were sent to the address.
    pub sent: u64,
    /// The numbers of the datagrams that arrived, in the order of their arrival.
    pub numbers: Vec<u64>,
}

impl Arrived {
    /// Checks that each datagram arrived exactly once.
    ///
    /// # Errors
    /// Fails if a datagram did not arrive, or arrived twice. The error names the first such datagram.
    pub fn all(mut self, what: &str) -> Result<()> {
        // Datagrams may overtake each other: each processor has a backlog of its own, and the sender moves between processors.
        self.numbers.sort_unstable();
        let mut next = 0;
        for number in self.numbers.iter().chain([&self.sent]) {
            ensure!(*number >= next, "{what}: datagram {number} arrived twice");
            let lost = number - next;
            ensure!(lost == 0, "{what}: of {} datagrams {lost} in a row are lost, from {next} on", self.sent);
            next = number + 1;
        }
        Ok(())
    }

    /// Checks that no datagram arrived.
    ///
    /// # Errors
    /// Fails if a datagram arrived. The error names the first one.
    pub fn none(&self, what: &str) -> Result<()> {
        match self.numbers.first() {
            None => Ok(()),
            Some(first) => {
                bail!("{what}: {} of {} datagrams passed, first {first}", self.numbers.len(), self.sent)
            }
        }
    }
}

fn receive(socket: &UdpSocket, stop: &AtomicBool) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut number = [0; 8];
    loop {
        // The flag is read before the socket, so that datagrams that are under way at the stop are still read.
        let last = stop.load(Ordering::Relaxed);
        match socket.recv(&mut number) {
            Ok(length) => {
                ensure!(length == number.len(), "a datagram of {length} bytes");
                numbers.push(u64::from_ne_bytes(number));
            }
            Err(_) if last => return Ok(numbers),
            Err(_) => {}
        }
    }
}

/// Makes a socket at this address. Waits while the address is in use: a process that another test starts has a copy of an old socket until its exec.
fn bound(at: SocketAddr) -> Result<UdpSocket> {
    let mut socket = UdpSocket::bind(at);
    let in_use = |socket: &std::io::Result<UdpSocket>| {
        socket.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    let _then_it_fails = wait_until("the port is free", Duration::from_secs(10), || {
        if in_use(&socket) {
            socket = UdpSocket::bind(at);
        }
        !in_use(&socket)
    });
    socket.with_context(|| format!("a socket at {at}"))
}

/// Makes flows come and go. Sends a datagram from one socket of the calling thread's namespace to each of these ports in turn, until `stop` is set. Nothing
/// answers. Returns the number of rounds.
///
/// # Errors
/// Fails if no socket is free.
pub fn to_ports(stop: &AtomicBool, from: SocketAddr, to: Ipv4Addr, ports: Range<u16>) -> Result<u64> {
    let socket = UdpSocket::bind(from)?;
    repeat(stop, || {
        for port in ports.clone() {
            // An error is ignored: it is the refusal of an earlier datagram.
            let _ = socket.send_to(b"x", (to, port));
        }
        Ok(Duration::ZERO)
    })
}
