//! Sends bare ACKs at a fixed rate, and records the time at which a RST comes back.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt,
        socket, sockopt,
    },
};
use nodefence::flags::monotonic_ns;

use super::{Running, repeat};
use crate::Netns;

#[derive(Debug, Default)]
struct Seen {
    /// The time of the first RST since [`Acks::arm`], 0 for none.
    first: AtomicU64,
    /// How many packets were sent.
    sent: AtomicU64,
    /// How many packets had been sent when the last RST was read.
    sent_at_last: AtomicU64,
}

/// The running sender.
#[derive(Debug)]
pub struct Acks {
    seen: Arc<Seen>,
    started: Instant,
    running: Running<u64>,
}

impl Acks {
    /// Starts to send `rate` packets a second from an address of a namespace, to the addresses `to` in turn. The sending thread calls `prepare` first.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    pub fn start(
        netns: &Netns,
        from: Ipv4Addr,
        to: &[Ipv4Addr],
        rate: u32,
        prepare: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let packets = packets(from, to)?;
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let mut running = Running::default();
        let stop = running.stop();
        running.add(netns.spawn(move || {
            prepare()?;
            send(&shared, &stop, &packets, rate)
        })?);
        Ok(Self { seen, started: Instant::now(), running })
    }

    /// Clears the recorded time, so that the next RST counts as the first one.
    pub fn arm(&self) {
        self.seen.first.store(0, Ordering::Relaxed);
    }

    /// The time of the first RST since [`Acks::arm`], as CLOCK_MONOTONIC in nanoseconds. The agent uses the same clock.
    pub fn first_rst(&self) -> Option<u64> {
        Some(self.seen.first.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Whether more than this many packets were sent since the last RST was read. A time would prove less: a sender that gets no processor reads no RST either.
    pub fn quiet_for(&self, packets: u64) -> bool {
        let last = self.seen.sent_at_last.load(Ordering::Relaxed);
        self.seen.sent.load(Ordering::Relaxed).saturating_sub(last) > packets
    }

    /// Ends the sending. Returns the number of packets sent in a second.
    ///
    /// # Errors
    /// Fails if a packet could not be sent.
    pub fn finish(self) -> Result<f64> {
        let took = self.started.elapsed().as_secs_f64();
        self.running.finish()?;
        Ok(self.seen.sent.load(Ordering::Relaxed) as f64 / took)
    }
}

/// Builds one bare ACK to each address, from the IP header on.
fn packets(from: Ipv4Addr, to: &[Ipv4Addr]) -> Result<Vec<(SockaddrIn, Vec<u8>)>> {
    let packet = |to: &Ipv4Addr| {
        let mut packet = Vec::new();
        etherparse::PacketBuilder::ipv4(from.octets(), to.octets(), 64)
            .tcp(40_000, 80, 1_000, 65_535)
            .ack(2_000)
            .write(&mut packet, &[])?;
        Ok((SockaddrIn::from(SocketAddrV4::new(*to, 0)), packet))
    };
    to.iter().map(packet).collect()
}

fn raw_socket(protocol: SockProtocol) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Inet, SockType::Raw, flags, protocol).context("cannot open a raw socket")
}

fn send(seen: &Seen, stop: &AtomicBool, packets: &[(SockaddrIn, Vec<u8>)], rate: u32) -> Result<u64> {
    // A raw socket (IPPROTO_RAW) only sends whole packets. Another socket reads the packets that come in.
    let out = raw_socket(SockProtocol::Raw)?;
    let back = raw_socket(SockProtocol::Tcp)?;
    setsockopt(&back, sockopt::RcvBuf, &(1 << 20))?;
    let gap = Duration::from_nanos(1_000_000_000 / u64::from(rate.max(1)));
    let mut next = Instant::now();
    let mut buffer = [0; 256];
    let mut turn = packets.iter().cycle();
    repeat(stop, || {
        let (to, packet) = turn.next().context("nobody to send to")?;
        // This wait spins, since a sleep is coarser than the interval.
        while Instant::now() < next {
            read_resets(seen, &back, &mut buffer)?;
        }
        // A sender that was delayed sends no burst afterwards.
        next = (next + gap).max(Instant::now());
        match sendto(out.as_raw_fd(), packet, to, MsgFlags::empty()) {
            Ok(_) => seen.sent.fetch_add(1, Ordering::Relaxed),
            Err(Errno::ENOBUFS | Errno::EAGAIN) => 0,
            Err(error) => return Err(error).context("cannot send a bare ACK"),
        };
        read_resets(seen, &back, &mut buffer)?;
        Ok(Duration::ZERO)
    })
}

/// Reads all packets that have come in, and records RSTs.
fn read_resets(seen: &Seen, back: &OwnedFd, buffer: &mut [u8; 256]) -> Result<()> {
    loop {
        let length = match recv(back.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Err(error) => return Err(error).context("cannot read what came back"),
        };
        if is_rst(&buffer[..length]) {
            let now = monotonic_ns();
            seen.sent_at_last.store(seen.sent.load(Ordering::Relaxed), Ordering::Relaxed);
            // Only the first RST is recorded.
            let _ = seen.first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Whether an IPv4 packet of TCP has the RST bit.
fn is_rst(packet: &[u8]) -> bool {
    let Some(first) = packet.first() else { return false };
    let header = usize::from(first & 0x0f) * 4;
    packet.get(header + 13).is_some_and(|flags| flags & 0x04 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_ack_is_no_rst_and_a_rst_is() {
        let to = Ipv4Addr::new(10, 0, 0, 1);
        let mut packet = packets(Ipv4Addr::LOCALHOST, &[to]).expect("built").remove(0).1;
        assert!(!is_rst(&packet));
        packet[20 + 13] |= 0x04;
        assert!(is_rst(&packet));
        assert!(!is_rst(&[]));
    }
}
