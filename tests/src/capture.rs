//! Captures packets at a device, and checks their checksums.

use std::{
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use nix::sys::{
    socket::{
        AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket, sockopt,
    },
    time::{TimeVal, TimeValLike as _},
};

use crate::Netns;

/// The `sll_pkttype` of a packet that leaves through the device (`PACKET_OUTGOING`, `linux/if_packet.h`).
const OUTGOING: u8 = 4;
/// The `sll_hatype` of devices with an Ethernet header (`ARPHRD_ETHER`, `linux/if_arp.h`).
const ETHER: u16 = 1;

/// A captured packet. The receiver's device captures it after the driver, the sender's device before the driver.
#[derive(Clone, Debug)]
pub struct Frame {
    /// When the packet was read from the socket.
    pub at: Instant,
    /// Whether the packet leaves through the device. Otherwise it arrives.
    pub outgoing: bool,
    /// Whether `bytes` begin with an Ethernet header. Otherwise they begin with the IP header.
    pub ethernet: bool,
    /// The whole packet.
    pub bytes: Vec<u8>,
}

/// The TCP, UDP or ICMP part of a [`Frame`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port (0 for ICMP).
    pub sport: u16,
    /// Destination port (0 for ICMP).
    pub dport: u16,
    /// Whether this is TCP with the RST bit.
    pub rst: bool,
    /// Whether this is TCP with the SYN bit.
    pub syn: bool,
    /// Whether this is an ICMP or ICMPv6 destination unreachable.
    pub unreachable: bool,
    /// Bytes after the TCP or UDP header; empty for ICMP.
    pub payload: &'a [u8],
}

impl Frame {
    /// The packet, parsed by etherparse.
    ///
    /// # Errors
    /// Fails if etherparse does not know the packet.
    pub fn slice(&self) -> Result<SlicedPacket<'_>> {
        let sliced = if self.ethernet {
            SlicedPacket::from_ethernet(&self.bytes)
        } else {
            SlicedPacket::from_ip(&self.bytes)
        };
        sliced.with_context(|| format!("frame {:02x?}", self.bytes))
    }

    /// The TCP, UDP or ICMP part; `None` for anything else, such as ARP.
    pub fn segment(&self) -> Option<Segment<'_>> {
        let packet = self.slice().ok()?;
        let (src, dst) = addresses(packet.net.as_ref()?)?;
        let none = Segment {
            src,
            dst,
            sport: 0,
            dport: 0,
            rst: false,
            syn: false,
            unreachable: false,
            payload: &[],
        };
        Some(match packet.transport? {
            TransportSlice::Tcp(tcp) => Segment {
                sport: tcp.source_port(),
                dport: tcp.destination_port(),
                rst: tcp.rst(),
                syn: tcp.syn(),
                payload: tcp.payload(),
                ..none
            },
            TransportSlice::Udp(udp) => Segment {
                sport: udp.source_port(),
                dport: udp.destination_port(),
                payload: udp.payload(),
                ..none
            },
            TransportSlice::Icmpv4(icmp) => Segment { unreachable: icmp.type_u8() == 3, ..none },
            TransportSlice::Icmpv6(icmp) => Segment { unreachable: icmp.type_u8() == 1, ..none },
        })
    }

    /// Checks the checksums of the IPv4 header and of the TCP, UDP, ICMP or ICMPv6 part, as a receiver does (RFC 1071).
    ///
    /// # Errors
    /// The error names the wrong checksum.
    pub fn verify(&self) -> Result<()> {
        let packet = self.slice()?;
        let Some(net) = packet.net.as_ref() else { return Ok(()) };
        if let NetSlice::Ipv4(v4) = net
            && sum(v4.header().slice(), 0) != 0xffff
        {
            bail!("IPv4 header checksum of {packet:?}");
        }
        let (Some(ip), Some((src, dst))) = (net.ip_payload_ref(), addresses(net)) else { return Ok(()) };
        if ip.fragmented {
            return Ok(());
        }
        let pseudo = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => sum(&[src.octets(), dst.octets()].concat(), 0),
            (IpAddr::V6(src), IpAddr::V6(dst)) => sum(&[src.octets(), dst.octets()].concat(), 0),
            _ => bail!("two IP versions in one packet"),
        };
        let protocol = ip.ip_number.0;
        let start = match protocol {
            1 => 0,
            6 | 17 | 58 => {
                let len = u32::try_from(ip.payload.len())?;
                sum(&[len.to_be_bytes(), [0, 0, 0, protocol]].concat(), u32::from(pseudo))
            }
            _ => return Ok(()),
        };
        let unsummed_udp = protocol == 17 && src.is_ipv4() && ip.payload.get(6..8) == Some(&[0, 0]);
        if !unsummed_udp && sum(ip.payload, u32::from(start)) != 0xffff {
            bail!("transport checksum of {packet:?}");
        }
        Ok(())
    }
}

fn addresses(net: &NetSlice<'_>) -> Option<(IpAddr, IpAddr)> {
    match net {
        NetSlice::Ipv4(v4) => Some((v4.header().source_addr().into(), v4.header().destination_addr().into())),
        NetSlice::Ipv6(v6) => Some((v6.header().source_addr().into(), v6.header().destination_addr().into())),
        NetSlice::Arp(_) => None,
    }
}

fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A running capture on one device.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Frame>>>,
}

impl Capture {
    /// Starts a capture, which holds all packets from now on. During a capture the kernel clones every packet that arrives on the device.
    ///
    /// # Errors
    /// Fails without root, or if there is no such device.
    pub fn start(ns: &Netns, device: &str) -> Result<Self> {
        let ifindex = ns.ifindex(device)? as usize;
        let socket = ns.run(open)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || collect(&socket, ifindex, &stopped));
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the capture. Returns all captured packets.
    pub fn finish(mut self) -> Vec<Frame> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open() -> Result<OwnedFd> {
    // The socket is not bound to a device. A packet socket with a protocol gets the packets of all devices of its namespace, each with its device.
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        .context("packet socket")?;
    setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(30))?;
    Ok(socket)
}

fn collect(socket: &OwnedFd, ifindex: usize, stop: &AtomicBool) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    let mut stopping_since = None;
    loop {
        // After the stop, packets that are already in the socket are still read, for at most two seconds.
        if stop.load(Ordering::Relaxed) {
            let since = stopping_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(2) {
                return frames;
            }
        }
        match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            Ok((len, Some(from))) if from.ifindex() == ifindex => frames.push(Frame {
                at: Instant::now(),
                outgoing: from.pkttype() == OUTGOING,
                ethernet: from.hatype() == ETHER,
                bytes: buffer.get(..len).unwrap_or_default().to_vec(),
            }),
            Ok(_) => {}
            Err(_) if stopping_since.is_some() => return frames,
            Err(_) => {}
        }
    }
}
