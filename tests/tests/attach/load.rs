//! A steady stream of numbered datagrams from `near` to addresses on `far`, each one accounted for.
use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use super::support::Pair;

const PORT: u16 = 9000;

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<()>,
    receivers: Vec<JoinHandle<Vec<u64>>>,
    done: Arc<AtomicBool>,
}

impl Load {
    /// Sends to each address in turn, about 5,000 datagrams a second to each.
    pub(crate) fn start(pair: &Pair, to: &[Ipv4Addr]) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let sent = Arc::new(AtomicU64::new(0));
        let receivers = to.iter().map(|address| receiver(pair, *address, done.clone())).collect();
        let (flag, count, to) = (stop.clone(), sent.clone(), to.to_vec());
        let sender = pair.near.run(move || {
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            std::thread::spawn(move || {
                while !flag.load(Ordering::Relaxed) {
                    let number = count.load(Ordering::Relaxed);
                    let begin = Instant::now();
                    for address in &to {
                        // A datagram to a flagged address is refused here; what counts is what arrives.
                        let _ = socket.send_to(&number.to_ne_bytes(), (*address, PORT));
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    // On an emulated processor what is under test needs most of it.
                    std::thread::sleep(Duration::from_micros(150).max(begin.elapsed() * 3));
                }
            })
        });
        Self { stop, sent, sender, receivers, done }
    }

    /// Waits until so many more datagrams went to each address.
    pub(crate) fn pass(&self, more: u64) {
        let until = self.sent() + more;
        let patience = Instant::now() + Duration::from_secs(60);
        while self.sent() < until {
            assert!(Instant::now() < patience, "the sender stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How many went to each address by now.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends it: what arrived at each address.
    pub(crate) fn finish(self) -> Vec<Arrived> {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap();
        self.done.store(true, Ordering::Relaxed);
        let sent = self.sent.load(Ordering::Relaxed);
        let numbers = self.receivers.into_iter().map(|receiver| receiver.join().unwrap());
        numbers.map(|numbers| Arrived { sent, numbers }).collect()
    }
}

/// The numbers that arrived at one address, of those that were sent.
pub(crate) struct Arrived {
    pub(crate) sent: u64,
    pub(crate) numbers: Vec<u64>,
}

impl Arrived {
    /// Each datagram arrived, once.
    pub(crate) fn assert_all(mut self, what: &str) {
        // Each processor has a backlog of its own: a sender that moves between two of them overtakes itself.
        self.numbers.sort_unstable();
        let mut next = 0;
        for number in self.numbers.iter().chain([&self.sent]) {
            assert!(*number >= next, "{what}: datagram {number} arrived twice");
            let lost = number - next;
            assert_eq!(
                lost, 0,
                "{what}: of {} datagrams {lost} in a row are lost, from {next} on",
                self.sent
            );
            next = number + 1;
        }
    }
}

fn receiver(pair: &Pair, address: Ipv4Addr, done: Arc<AtomicBool>) -> JoinHandle<Vec<u64>> {
    pair.far.run(move || {
        let socket = bind((address, PORT).into());
        // No datagram may be lost for want of room while this machine is busy with something else.
        setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        std::thread::spawn(move || {
            let mut received = Vec::new();
            let mut number = [0; 8];
            loop {
                // Delivery over veth needs no more than a softirq: after a quiet fifth of a second nothing is under way.
                let last = done.load(Ordering::Relaxed);
                match socket.recv(&mut number) {
                    Ok(len) => {
                        assert_eq!(len, number.len(), "a datagram of another length");
                        received.push(u64::from_ne_bytes(number));
                    }
                    Err(_) if last => return received,
                    Err(_) => {}
                }
            }
        })
    })
}

/// A socket there. Processes that other tests start have a copy of the one before until they are what they shall be.
fn bind(at: SocketAddr) -> UdpSocket {
    let mut socket = UdpSocket::bind(at);
    let begun = Instant::now();
    while socket.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
        && begun.elapsed() < Duration::from_secs(10)
    {
        std::thread::sleep(Duration::from_millis(10));
        socket = UdpSocket::bind(at);
    }
    socket.unwrap()
}

/// Whether one datagram to an address arrives.
pub(crate) fn arrives(pair: &Pair, to: Ipv4Addr) -> bool {
    let load = Load::start(pair, &[to]);
    load.pass(20);
    let arrived = load.finish().remove(0);
    let any = !arrived.numbers.is_empty();
    if any {
        arrived.assert_all("one way or the other");
    }
    any
}
