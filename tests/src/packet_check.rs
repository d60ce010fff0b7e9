//! Checks each field and checksum of an answer with an independent packet library.
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use etherparse::{Icmpv4Header, LinkExtSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice};

use crate::packet_frame::Frame;

/// The answer that a frame must get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedAnswer {
    /// A RST with this sequence number.
    Reset(u32),
    /// A RST|ACK with sequence number 0 and this acknowledgement number.
    Refuse(u32),
    /// An ICMP port unreachable.
    Unreachable,
}

macro_rules! same {
    ($what:literal, $found:expr, $expected:expr) => {{
        let found = $found;
        let expected = $expected;
        ensure!(found == expected, "{}: expected {expected:?}, found {found:?}", $what);
    }};
}

/// Checks that `bytes` are exactly the answer to `asked`.
///
/// # Errors
/// The error names the first wrong field.
pub fn check(asked: &Frame, answer: ExpectedAnswer, bytes: &[u8]) -> Result<()> {
    check_padded(asked, answer, bytes, 0)
}

/// Same as [`check`], but a shorter answer must be filled with zeros up to the length `shortest`.
///
/// # Errors
/// Fails as [`check`] does.
pub fn check_padded(asked: &Frame, answer: ExpectedAnswer, bytes: &[u8], shortest: usize) -> Result<()> {
    let packet =
        if asked.macs.is_some() { SlicedPacket::from_ethernet(bytes) } else { SlicedPacket::from_ip(bytes) }
            .context("the answer does not parse")?;
    link(asked, &packet)?;
    let body = match answer {
        ExpectedAnswer::Reset(_) | ExpectedAnswer::Refuse(_) => 20,
        ExpectedAnswer::Unreachable if asked.src.is_ipv4() => 8 + 28,
        ExpectedAnswer::Unreachable => 8 + 48,
    };
    network(asked, &packet, body)?;
    let network_header = if asked.src.is_ipv4() { 20 } else { 40 };
    let len = asked.l3() + network_header + body;
    same!("length of the frame", bytes.len(), len.max(shortest));
    ensure!(bytes[len..].iter().all(|byte| *byte == 0), "padded with {:02x?}", &bytes[len..]);
    match (answer, packet.transport.as_ref().context("no transport header")?) {
        (ExpectedAnswer::Reset(_) | ExpectedAnswer::Refuse(_), TransportSlice::Tcp(tcp)) => {
            segment(asked, answer, tcp)
        }
        (ExpectedAnswer::Unreachable, TransportSlice::Icmpv4(icmp)) => {
            same!("type", (icmp.type_u8(), icmp.code_u8()), (3, 3));
            same!("unused", icmp.bytes5to8(), [0; 4]);
            let original = &asked.bytes()[asked.l3()..][..28];
            same!("quoted packet", icmp.payload(), original);
            let header = Icmpv4Header::with_checksum(icmp.icmp_type(), icmp.payload());
            same!("checksum", icmp.checksum(), header.checksum);
            Ok(())
        }
        (ExpectedAnswer::Unreachable, TransportSlice::Icmpv6(icmp)) => {
            same!("type", (icmp.type_u8(), icmp.code_u8()), (1, 4));
            same!("unused", icmp.bytes5to8(), [0; 4]);
            let original = &asked.bytes()[asked.l3()..][..48];
            same!("quoted packet", icmp.payload(), original);
            let (IpAddr::V6(from), IpAddr::V6(to)) = (asked.dst, asked.src) else {
                anyhow::bail!("ICMPv6 in IPv4")
            };
            ensure!(
                icmp.is_checksum_valid(from.octets(), to.octets()),
                "checksum {:04x} is wrong",
                icmp.checksum()
            );
            Ok(())
        }
        (_, other) => anyhow::bail!("expected {answer:?}, found {other:?}"),
    }
}

fn link(asked: &Frame, packet: &SlicedPacket<'_>) -> Result<()> {
    let Some((destination, source)) = asked.macs else { return Ok(()) };
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { anyhow::bail!("no Ethernet header") };
    same!("Ethernet destination", ethernet.destination(), source);
    same!("Ethernet source", ethernet.source(), destination);
    let mut tags = Vec::new();
    let mut kind = ethernet.ether_type().0;
    for ext in &packet.link_exts {
        let LinkExtSlice::Vlan(tag) = ext else { anyhow::bail!("not a VLAN tag: {ext:?}") };
        same!("VLAN id", tag.vlan_identifier().value(), 100 + tags.len() as u16);
        tags.push(kind);
        kind = tag.ether_type().0;
    }
    same!("VLAN tags", &tags, &asked.tags);
    Ok(())
}

fn network(asked: &Frame, packet: &SlicedPacket<'_>, body: usize) -> Result<()> {
    match packet.net.as_ref().context("no IP header")? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            same!("source", IpAddr::V4(header.source_addr()), asked.dst);
            same!("destination", IpAddr::V4(header.destination_addr()), asked.src);
            same!("header length", header.ihl(), 5);
            // Linux sends its own ICMP errors with precedence 6, internetwork control (net/ipv4/icmp.c, RFC 1812 section 4.3.2.5).
            let icmp = header.protocol() == etherparse::IpNumber::ICMP;
            same!("precedence", header.dcp().value(), if icmp { 48 } else { 0 });
            same!("ECN", header.ecn().value(), 0);
            same!("total length", usize::from(header.total_len()), 20 + body);
            same!("identification", header.identification(), 0);
            ensure!(
                header.dont_fragment() && !header.more_fragments(),
                "DF is not set, or more fragments follow"
            );
            same!("fragment offset", header.fragments_offset().value(), 0);
            same!("lifetime", header.ttl(), 64);
            same!("header checksum", header.header_checksum(), header.to_header().calc_header_checksum());
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            same!("source", IpAddr::V6(header.source_addr()), asked.dst);
            same!("destination", IpAddr::V6(header.destination_addr()), asked.src);
            same!("payload length", usize::from(header.payload_length()), body);
            same!("flow label", header.flow_label().value(), 0);
            same!("traffic class", header.traffic_class(), 0);
            same!("hop limit", header.hop_limit(), 64);
            ensure!(ip.extensions().is_empty(), "the answer has extension headers");
        }
        other => anyhow::bail!("not IP: {other:?}"),
    }
    Ok(())
}

fn segment(asked: &Frame, answer: ExpectedAnswer, tcp: &etherparse::TcpSlice<'_>) -> Result<()> {
    let (seq, ack_number, ack) = match answer {
        ExpectedAnswer::Reset(seq) => (seq, 0, false),
        ExpectedAnswer::Refuse(number) => (0, number, true),
        ExpectedAnswer::Unreachable => anyhow::bail!("a segment is no ICMP answer"),
    };
    same!("source port", tcp.source_port(), asked.dport);
    same!("destination port", tcp.destination_port(), asked.sport);
    same!("sequence number", tcp.sequence_number(), seq);
    same!("acknowledgement number", tcp.acknowledgment_number(), ack_number);
    same!("data offset", tcp.data_offset(), 5);
    same!("ACK", tcp.ack(), ack);
    ensure!(tcp.rst(), "RST is not set");
    let others = [tcp.syn(), tcp.fin(), tcp.psh(), tcp.urg(), tcp.ece(), tcp.cwr(), tcp.ns()];
    same!("SYN, FIN, PSH, URG, ECE, CWR, NS", others, [false; 7]);
    same!("window", tcp.window_size(), 0);
    same!("urgent pointer", tcp.urgent_pointer(), 0);
    ensure!(tcp.payload().is_empty(), "the RST carries payload");
    let sum = match (asked.dst, asked.src) {
        (IpAddr::V4(from), IpAddr::V4(to)) => tcp.calc_checksum_ipv4(from.octets(), to.octets())?,
        (IpAddr::V6(from), IpAddr::V6(to)) => tcp.calc_checksum_ipv6(from.octets(), to.octets())?,
        _ => anyhow::bail!("addresses of two families"),
    };
    same!("checksum", tcp.checksum(), sum);
    Ok(())
}
