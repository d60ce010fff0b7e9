//! The load: small datagrams, and one TCP stream.
#![expect(unsafe_code, reason = "sendmmsg(2), for which no safe wrapper reuses its headers")]
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use super::path::Path3;
use crate::cpus;

/// Payload of a datagram: a frame of 64 + 42 bytes.
const PAYLOAD: [u8; 64] = [0x5a; 64];
/// Datagrams a system call.
const BATCH: usize = 32;
const PORT: u16 = 7000;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Traffic {
    Udp,
    Tcp,
    TcpNoGso,
}

/// The CPU that sends and the CPU that receives.
#[derive(Clone, Copy)]
pub(super) struct Cpus {
    send: usize,
    receive: usize,
}

impl Cpus {
    /// The last two that this process may use.
    pub(super) fn choose() -> Self {
        let allowed = cpus::allowed();
        let send = allowed.last().copied().unwrap_or(0);
        let receive = allowed.iter().rev().nth(1).copied().unwrap_or(send);
        Self { send, receive }
    }
}

impl Traffic {
    pub(super) const ALL: [Self; 3] = [Self::Udp, Self::Tcp, Self::TcpNoGso];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP, GSO on",
            Self::TcpNoGso => "TCP, GSO off",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Udp => "Mpackets/s",
            Self::Tcp | Self::TcpNoGso => "Gbit/s",
        }
    }

    /// One run; the rate in [`Traffic::unit`].
    pub(super) fn run(
        self,
        path: &Path3,
        to: Ipv4Addr,
        duration: Duration,
        cpus: Cpus,
    ) -> anyhow::Result<f64> {
        match self {
            Self::Udp => udp(path, to, duration, cpus),
            Self::Tcp | Self::TcpNoGso => tcp(path, to, duration, cpus),
        }
    }
}

/// What arrived at the sink's device, a second. The sink's socket is full from the start: the datagrams end there at the same cost for
/// every variant.
fn udp(path: &Path3, to: Ipv4Addr, duration: Duration, cpus: Cpus) -> anyhow::Result<f64> {
    let _full = path.sink.within(|| Ok(UdpSocket::bind((to, PORT))?))?;
    let before = received(path)?;
    let took = path.client.within(|| {
        cpus::stay_on(&[cpus.send])?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((to, PORT))?;
        send_for(&socket, duration)
    })?;
    let arrived = received(path)? - before;
    ensure!(arrived > 0, "nothing arrived at the sink");
    Ok(arrived as f64 / took.as_secs_f64() / 1e6)
}

/// Packets that the sink's device has received.
fn received(path: &Path3) -> anyhow::Result<u64> {
    let shown = path.sink.exec("ip -s -j link show dev eth0")?;
    let parsed: serde_json::Value = serde_json::from_str(&shown).context("ip -j printed no JSON")?;
    parsed[0]["stats64"]["rx"]["packets"].as_u64().context("ip -s -j printed no packet counter")
}

/// Sends as fast as the path takes it; how long it took in all.
fn send_for(socket: &UdpSocket, duration: Duration) -> anyhow::Result<Duration> {
    let mut payload = PAYLOAD;
    let mut part = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    let started = Instant::now();
    // SAFETY: all zero is a valid msghdr: no name, no parts, no control data.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for header in &mut headers {
        header.msg_hdr.msg_iov = &raw mut part;
        header.msg_hdr.msg_iovlen = 1;
    }
    while started.elapsed() < duration {
        for _ in 0..8 {
            // SAFETY: the headers, the part and the payload outlive the call; the kernel only reads what they point to.
            let sent =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), BATCH as libc::c_uint, 0) };
            if sent < 0 {
                let error = std::io::Error::last_os_error();
                ensure!(error.raw_os_error() == Some(libc::ENOBUFS), "cannot send: {error}");
            }
        }
    }
    Ok(started.elapsed())
}

/// Bits that the receiver read, a second, after the window has opened.
fn tcp(path: &Path3, to: Ipv4Addr, duration: Duration, cpus: Cpus) -> anyhow::Result<f64> {
    let listener = path.sink.within(|| Ok(TcpListener::bind((to, PORT))?))?;
    let to_sink = path.client.within(|| {
        TcpStream::connect_timeout(&(to, PORT).into(), Duration::from_secs(5))
            .context("cannot connect to the sink")
    })?;
    let (at_sink, _) = listener.accept()?;
    let bytes = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| -> anyhow::Result<()> {
            cpus::stay_on(&[cpus.receive])?;
            let mut stream = at_sink;
            let mut buffer = vec![0; 1 << 18];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => bytes.fetch_add(n as u64, Ordering::Relaxed),
                };
            }
        });
        let sender = scope.spawn(|| -> anyhow::Result<()> {
            cpus::stay_on(&[cpus.send])?;
            let mut stream = to_sink;
            let buffer = vec![0x5a; 1 << 17];
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(&buffer)?;
            }
            Ok(())
        });
        std::thread::sleep(duration / 4);
        let (from, started) = (bytes.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(duration);
        let (read, took) = (bytes.load(Ordering::Relaxed) - from, started.elapsed());
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow::anyhow!("a traffic thread panicked");
        sender.join().map_err(panicked)??;
        receiver.join().map_err(panicked)??;
        Ok(read as f64 * 8.0 / took.as_secs_f64() / 1e9)
    })
}
