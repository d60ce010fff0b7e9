//! Sends bare ACKs at a fixed pace and notes when a RST comes back.
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt,
        socket, sockopt,
    },
    time::{ClockId, clock_gettime},
};

use nodefence_tests::Netns;

use crate::{cpus, tables};

/// The prober's address.
pub(super) const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);

/// CLOCK_MONOTONIC in nanoseconds: the agent's clock too.
pub(super) fn now_ns() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

#[derive(Default)]
struct Seen {
    /// The first RST since it was armed, 0 where there is none.
    first: AtomicU64,
    /// How many packets were sent, and how many of them before the last RST was read.
    sent: AtomicU64,
    sent_at_last: AtomicU64,
    stop: AtomicBool,
}

/// A running prober.
pub(super) struct Prober {
    seen: Arc<Seen>,
    started: Instant,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Prober {
    /// Starts to send `rate` packets a second to the first `backends` backends in turn, on this CPU.
    pub(super) fn start(netns: &Netns, backends: u32, rate: u32, cpu: usize) -> anyhow::Result<Self> {
        let packets = packets(backends)?;
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = netns.spawn(move || {
            cpus::stay_on(&[cpu])?;
            probe(&shared, &packets, rate)
        })?;
        Ok(Self { seen, started: Instant::now(), thread })
    }

    /// From here on the next RST is the first.
    pub(super) fn arm(&self) {
        self.seen.first.store(0, Ordering::Relaxed);
    }

    /// When the first RST since [`Prober::arm`] came, on [`now_ns`]'s clock.
    pub(super) fn first_rst(&self) -> Option<u64> {
        Some(self.seen.first.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Whether this many packets were sent since the last RST was read. Counted in packets, not in time: a prober that
    /// does not get the CPU reads nothing either.
    pub(super) fn quiet_for(&self, packets: u64) -> bool {
        let last = self.seen.sent_at_last.load(Ordering::Relaxed);
        self.seen.sent.load(Ordering::Relaxed).saturating_sub(last) > packets
    }

    /// Ends it: the packets a second that it sent.
    pub(super) fn stop(self) -> anyhow::Result<f64> {
        self.seen.stop.store(true, Ordering::Relaxed);
        let took = self.started.elapsed().as_secs_f64();
        self.thread.join().map_err(|_| anyhow::anyhow!("the prober panicked"))??;
        Ok(self.seen.sent.load(Ordering::Relaxed) as f64 / took)
    }
}

/// One bare ACK for each backend, from the IP header on.
fn packets(backends: u32) -> anyhow::Result<Vec<(SockaddrIn, Vec<u8>)>> {
    (0..backends)
        .map(|i| {
            let to = tables::backend(i);
            let mut packet = Vec::new();
            etherparse::PacketBuilder::ipv4(SOURCE.octets(), to.octets(), 64)
                .tcp(40_000, 80, 1_000, 65_535)
                .ack(2_000)
                .write(&mut packet, &[])?;
            Ok((SockaddrIn::from(SocketAddrV4::new(to, 0)), packet))
        })
        .collect()
}

fn raw_socket(protocol: SockProtocol) -> anyhow::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Inet, SockType::Raw, flags, protocol).context("cannot open a raw socket")
}

fn probe(seen: &Seen, packets: &[(SockaddrIn, Vec<u8>)], rate: u32) -> anyhow::Result<()> {
    // Raw (IPPROTO_RAW) takes whole packets to send; what comes in is read from another one.
    let (out, back) = (raw_socket(SockProtocol::Raw)?, raw_socket(SockProtocol::Tcp)?);
    setsockopt(&back, sockopt::RcvBuf, &(1 << 20))?;
    let gap = Duration::from_nanos(1_000_000_000 / u64::from(rate.max(1)));
    let mut next = Instant::now();
    let mut buffer = [0; 256];
    for (to, packet) in packets.iter().cycle() {
        if seen.stop.load(Ordering::Relaxed) {
            break;
        }
        // A spinning wait: a sleep is coarser than the pace.
        while Instant::now() < next {
            drain(seen, &back, &mut buffer)?;
        }
        // A prober that was held up sends no burst afterwards.
        next = (next + gap).max(Instant::now());
        match sendto(out.as_raw_fd(), packet, to, MsgFlags::empty()) {
            Ok(_) => seen.sent.fetch_add(1, Ordering::Relaxed),
            Err(Errno::ENOBUFS | Errno::EAGAIN) => 0,
            Err(error) => return Err(error).context("cannot send a probe"),
        };
        drain(seen, &back, &mut buffer)?;
    }
    Ok(())
}

fn drain(seen: &Seen, back: &OwnedFd, buffer: &mut [u8; 256]) -> anyhow::Result<()> {
    loop {
        let length = match recv(back.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Err(error) => return Err(error).context("cannot read what came back"),
        };
        if is_rst(&buffer[..length]) {
            let now = now_ns()?;
            seen.sent_at_last.store(seen.sent.load(Ordering::Relaxed), Ordering::Relaxed);
            // Only the first stays.
            let _ = seen.first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Whether an IPv4 packet is a TCP segment with RST.
fn is_rst(packet: &[u8]) -> bool {
    let Some(first) = packet.first() else { return false };
    let header = usize::from(first & 0x0f) * 4;
    packet.get(header + 13).is_some_and(|flags| flags & 0x04 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_no_rst_and_a_rst_is() {
        let mut packet = packets(1).expect("built").remove(0).1;
        assert!(!is_rst(&packet));
        packet[20 + 13] |= 0x04;
        assert!(is_rst(&packet));
        assert!(!is_rst(&[]));
    }
}
