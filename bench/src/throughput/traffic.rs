//! The load: small datagrams, and one TCP stream.
use std::{
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use nodefence_tests::load::full;

use super::path::Path3;
use crate::cpus;

const PORT: u16 = 7000;

/// The kind of traffic.
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
    /// Chooses the last two CPUs that this process may use.
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

    /// Makes one run. Returns the rate in [`Traffic::unit`].
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

/// The rate of packets that arrive at the sink's device, in millions a second. Nobody reads the sink's socket, and it is soon full. So the
/// datagrams end there at the same cost for every variant.
fn udp(path: &Path3, to: Ipv4Addr, duration: Duration, cpus: Cpus) -> anyhow::Result<f64> {
    let _full = path.sink.within(|| Ok(UdpSocket::bind((to, PORT))?))?;
    let before = received(path)?;
    let took = path.client.within(|| {
        cpus::stay_on(&[cpus.send])?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((to, PORT))?;
        full::datagrams(&socket, duration)
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

/// Gbit a second that the receiver read.
fn tcp(path: &Path3, to: Ipv4Addr, duration: Duration, cpus: Cpus) -> anyhow::Result<f64> {
    let listener = path.sink.within(|| Ok(TcpListener::bind((to, PORT))?))?;
    let to_sink = path.client.within(|| {
        TcpStream::connect_timeout(&(to, PORT).into(), Duration::from_secs(5))
            .context("cannot connect to the sink")
    })?;
    let (at_sink, _) = listener.accept()?;
    let sends = || cpus::stay_on(&[cpus.send]);
    let receives = || cpus::stay_on(&[cpus.receive]);
    Ok(full::stream([to_sink, at_sink], duration, [&sends, &receives])? * 8.0 / 1e9)
}
