//! Sends a flood of SYNs: as many as one thread can send, from many source ports in turn.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd as _,
    time::Instant,
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket},
};

use super::{Running, repeat};
use crate::Netns;

/// The source ports of each address. They are above those of [`super::connections`], and so few that their entries fit into conntrack.
const PORTS: std::ops::Range<u16> = 30_000..40_000;
/// The offset of the source port, after an IPv4 header without options.
const SOURCE_PORT: usize = 20;
/// The offset of the TCP checksum.
const CHECKSUM: usize = 20 + 16;
/// The number of SYNs between two checks whether the sender must stop.
const BATCH: usize = 64;

/// The running sender.
#[derive(Debug)]
pub struct Syns {
    started: Instant,
    running: Running<u64>,
}

impl Syns {
    /// Starts to send from these addresses of a namespace in turn.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    pub fn start(netns: &Netns, from: &[Ipv4Addr], to: SocketAddrV4) -> Result<Self> {
        let from = from.to_vec();
        let mut running = Running::default();
        let stop = running.stop();
        running.add(netns.spawn(move || {
            let flags = SockFlag::SOCK_CLOEXEC;
            let out = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Raw)
                .context("cannot open a raw socket")?;
            let mut packets: Vec<Vec<u8>> =
                from.iter().map(|from| packet(*from, to)).collect::<Result<_>>()?;
            let addresses = packets.len();
            let mut ports = PORTS.flat_map(|port| (0..addresses).map(move |at| (port, at))).cycle();
            let address = SockaddrIn::from(SocketAddrV4::new(*to.ip(), 0));
            let mut sent = 0;
            repeat(&stop, || {
                for _ in 0..BATCH {
                    let (port, at) = ports.next().context("no source address")?;
                    let packet = &mut packets[at];
                    renumber(packet, port);
                    match sendto(out.as_raw_fd(), packet, &address, MsgFlags::empty()) {
                        Ok(_) => sent += 1,
                        Err(Errno::ENOBUFS | Errno::EPERM) => {}
                        Err(error) => return Err(error).context("cannot send a SYN"),
                    }
                }
                Ok(std::time::Duration::ZERO)
            })?;
            Ok(sent)
        })?);
        Ok(Self { started: Instant::now(), running })
    }

    /// Ends the flood. Returns the number of SYNs sent in a second.
    ///
    /// # Errors
    /// Fails if a SYN could not be sent.
    pub fn finish(self) -> Result<f64> {
        let took = self.started.elapsed().as_secs_f64();
        let sent: u64 = self.running.finish()?.into_iter().sum();
        Ok(sent as f64 / took)
    }
}

/// Builds a SYN, from the IP header on.
fn packet(from: Ipv4Addr, to: SocketAddrV4) -> Result<Vec<u8>> {
    let mut packet = Vec::new();
    etherparse::PacketBuilder::ipv4(from.octets(), to.ip().octets(), 64)
        .tcp(PORTS.start, to.port(), 1_000, 65_535)
        .syn()
        .write(&mut packet, &[])?;
    Ok(packet)
}

/// Changes the source port of a packet and updates its checksum (RFC 1624, equation 3).
fn renumber(packet: &mut [u8], port: u16) {
    let word = |packet: &[u8], at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let before = word(packet, SOURCE_PORT);
    let mut sum = u32::from(!word(packet, CHECKSUM)) + u32::from(!before) + u32::from(port);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    packet[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&port.to_be_bytes());
    packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_has_its_checksum() {
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
        let mut renumbered = packet(Ipv4Addr::LOCALHOST, to).expect("built");
        for port in [0, 1, 30_001, 39_999, u16::MAX] {
            renumber(&mut renumbered, port);
            let mut made = Vec::new();
            etherparse::PacketBuilder::ipv4([127, 0, 0, 1], [10, 0, 0, 1], 64)
                .tcp(port, 80, 1_000, 65_535)
                .syn()
                .write(&mut made, &[])
                .expect("built");
            assert_eq!(renumbered, made, "{port}");
        }
    }
}
