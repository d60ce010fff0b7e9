//! Builds the answers that the kernel program could not make in place. Pure: an event in, a frame out.
//!
//! The egress program dropped the packet and sent its head as an event. The same code as in the program reads the head and chooses the
//! answer. The answer becomes a frame, which the injector ([`super::Injector`]) feeds in as ingress of the same device.
use nodefence_common::{
    Action, Addr, Event, EventKind,
    packet::{
        ETH_LEN, ICMP_LEN, Link, Packet, Reader, Skip, Sum, UDP_LEN, V4_LEN, V6_LEN, eth_header, network,
        port_unreachable, protocol, pseudo, sum_bytes, transport, v4_header, v6_header,
    },
};
use nodefence_ebpf::decide::{self, Decision, Scope, decide};
use thiserror::Error;

/// An ICMP error carries at most as much of the original as keeps it within 576 bytes (RFC 1812 section 4.3.2.3).
const ICMP_MAX: usize = 576;
/// An ICMPv6 error stays within the IPv6 minimum MTU (RFC 4443 section 2.4 c).
const ICMPV6_MAX: usize = 1280;

/// Why a packet gets no answer. The packet has been dropped already, and the thread `answers` only counts the failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unanswerable {
    /// The event is not a request for an answer.
    #[error("event kind {0} asks for no answer")]
    Kind(u32),
    /// The captured bytes end inside a header, or a header is malformed.
    #[error("the headers cannot be read: {0:?}")]
    Headers(Skip),
    /// The packet is neither a TCP segment nor a UDP datagram, or a rule forbids an answer (RFC 1122 section 3.2.2, RFC 9293
    /// section 3.10.7.1).
    #[error("never answered")]
    Never,
}

/// The captured beginning of a frame.
struct Head<'a> {
    bytes: &'a [u8],
    /// Length of the whole frame.
    len: u32,
}

impl Reader for Head<'_> {
    type Window<const N: usize> = [u8; N];

    fn window<const N: usize>(&self, at: u32) -> Option<[u8; N]> {
        self.bytes.window(at)
    }

    fn len(&self) -> u32 {
        self.len
    }
}

/// An answer to a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerFrame {
    /// The frame.
    pub frame: Vec<u8>,
    /// The receiver of an ICMP error; `None` for TCP. ICMP errors have a budget, TCP answers have none.
    pub icmp_to: Option<Addr>,
}

/// The frame that answers the packet of `event`, to be injected as ingress of `event.ifindex`.
///
/// - TCP with ACK: a RST with the segment's ACK number.
/// - TCP without ACK: a RST|ACK that acknowledges all that the segment carries (RFC 9293 section 3.10.7.1).
/// - UDP: ICMP or ICMPv6 port unreachable, with as much of the original as was captured and may be sent.
///
/// All checksums are complete, and the MAC addresses are swapped. An accelerated VLAN tag becomes part of the frame again. A packet of a
/// device without link layer gets a dummy Ethernet header.
///
/// # Errors
/// [`Unanswerable`], where the packet has no answer.
pub fn answer(event: &Event) -> Result<AnswerFrame, Unanswerable> {
    if EventKind::from_raw(event.kind) != Some(EventKind::Answer) {
        return Err(Unanswerable::Kind(event.kind));
    }
    let head = Head { bytes: event.packet(), len: event.packet_len };
    let l3 = usize::from(event.l3_offset);
    let ip = head.bytes.get(l3..).unwrap_or_default();
    let packet = read(&head, ip, event.l3_offset).map_err(Unanswerable::Headers)?;
    let Decision::Answer(decided) = decide(&packet, Scope::Address, Action::Refuse) else {
        return Err(Unanswerable::Never);
    };
    let link = link(event, packet.v6).ok_or(Unanswerable::Headers(Skip::Malformed))?;
    let src = &packet.dst;
    let dst = &packet.src;
    if decided != decide::Rejection::Unreachable {
        let segment = decided.tcp(&packet, Sum::Full);
        return Ok(AnswerFrame {
            frame: ip_frame(&link, src, dst, protocol::TCP, &segment, &[]),
            icmp_to: None,
        });
    }
    let (icmp, max) = if packet.v6 {
        (protocol::ICMPV6, ICMPV6_MAX - V6_LEN - ICMP_LEN)
    } else {
        (protocol::ICMP, ICMP_MAX - V4_LEN - ICMP_LEN)
    };
    // The packet's own length, without link-layer padding.
    let whole = packet.l4 as usize - l3 + UDP_LEN + packet.payload as usize;
    let quoted = &ip[..ip.len().min(whole).min(max)];
    let pseudo = if packet.v6 { pseudo(src, dst, icmp, (ICMP_LEN + quoted.len()) as u32) } else { 0 };
    let header = port_unreachable(packet.v6, pseudo + sum_bytes(quoted));
    Ok(AnswerFrame { frame: ip_frame(&link, src, dst, icmp, &header, quoted), icmp_to: Some(packet.src) })
}

fn read(head: &Head<'_>, ip: &[u8], l3: u16) -> Result<Packet, Skip> {
    let v6 = match ip.first().ok_or(Skip::Short)? >> 4 {
        4 => false,
        6 => true,
        _ => return Err(Skip::NotIp),
    };
    let link = if l3 == 0 { Link::None(0) } else { Link::Ethernet };
    let mut packet = Packet::empty();
    network(head, link, l3.into(), v6, &mut packet)?;
    transport(head, &mut packet)?;
    Ok(packet)
}

/// The link-layer header of an answer: the MAC addresses are swapped, the VLAN tags stay, and an accelerated tag stands in front of them.
fn link(event: &Event, v6: bool) -> Option<Vec<u8>> {
    let l3 = usize::from(event.l3_offset);
    if l3 == 0 {
        return Some(eth_header([0; 6], [0; 6], v6).to_vec());
    }
    let original = event.packet().get(..l3).filter(|_| l3 >= ETH_LEN)?;
    let mut out = [&original[6..12], &original[..6]].concat();
    if event.vlan_proto != 0 {
        out.extend(event.vlan_proto.to_be_bytes());
        out.extend(event.vlan_tci.to_be_bytes());
    }
    out.extend(&original[12..]);
    // The ethertype is the last field, with or without tags.
    let ethertype = out.len() - 2;
    out[ethertype..].copy_from_slice(&eth_header([0; 6], [0; 6], v6)[12..]);
    Some(out)
}

/// Makes a frame of these headers. Both addresses must be of one family.
pub(crate) fn ip_frame(
    link: &[u8],
    src: &Addr,
    dst: &Addr,
    protocol: u8,
    transport: &[u32],
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = link.to_vec();
    let mut put = |words: &[u32]| frame.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    let body = 4 * transport.len() + payload.len();
    if src.as_v4().is_some() {
        put(&v4_header(src, dst, 0, protocol, body));
    } else {
        put(&v6_header(src, dst, protocol, body));
    }
    put(transport);
    frame.extend(payload);
    frame
}

#[cfg(test)]
mod tests;
