//! What the kernel program could not answer in place: pure, event in, frame out.
//!
//! The egress program dropped the packet and sent its head. That head is read, and the answer decided, as the program does; it is built as a
//! frame that enters as ingress of the same device ([`super`]'s injector).
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

/// Why a packet gets no answer. It has been dropped already; the injector counts it and forgets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unanswerable {
    /// The event is not a request for an answer.
    #[error("event kind {0} asks for no answer")]
    Kind(u32),
    /// The captured bytes end inside a header, or a header says what no sender may say.
    #[error("the headers cannot be read: {0:?}")]
    Headers(Skip),
    /// It is no segment and no datagram, or a rule forbids an answer (RFC 1122 section 3.2.2, RFC 9293 section 3.10.7.1).
    #[error("never answered")]
    Never,
}

/// What was captured of a frame.
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

/// What answers a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerFrame {
    /// The frame.
    pub frame: Vec<u8>,
    /// To whom, where it is an ICMP error: of these there is a budget.
    pub icmp_to: Option<Addr>,
}

/// The frame that answers the packet of `event`, to be injected as ingress of `event.ifindex`.
///
/// TCP with ACK: RST with the segment's ACK number. TCP without: RST|ACK that acknowledges all it carries (RFC 9293 section
/// 3.10.7.1). UDP: ICMP or ICMPv6 port unreachable with as much of the original as was captured and may be sent. All
/// checksums are full; MAC addresses are swapped; an accelerated VLAN tag stands in the frame again; a packet of a device
/// without link layer gets a dummy Ethernet header.
///
/// # Errors
/// [`Unanswerable`], where the packet has no answer.
pub fn answer(event: &Event) -> Result<AnswerFrame, Unanswerable> {
    if EventKind::from_raw(event.kind) != Some(EventKind::Answer) {
        return Err(Unanswerable::Kind(event.kind));
    }
    let (head, l3) = (Head { bytes: event.packet(), len: event.packet_len }, usize::from(event.l3_offset));
    let ip = head.bytes.get(l3..).unwrap_or_default();
    let packet = read(&head, ip, event.l3_offset).map_err(Unanswerable::Headers)?;
    let Decision::Answer(decided) = decide(&packet, Scope::Address, Action::Refuse) else {
        return Err(Unanswerable::Never);
    };
    let link = link(event, packet.v6).ok_or(Unanswerable::Headers(Skip::Malformed))?;
    let (src, dst) = (&packet.dst, &packet.src);
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
    // Without link-layer padding.
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

/// The bytes of an answer ahead of its IP header: MAC addresses swapped, VLAN tags kept, an accelerated tag put back in front of them.
fn link(event: &Event, v6: bool) -> Option<Vec<u8>> {
    let l3 = usize::from(event.l3_offset);
    if l3 == 0 {
        return Some(eth_header([0; 6], [0; 6], v6).to_vec());
    }
    let asked = event.packet().get(..l3).filter(|_| l3 >= ETH_LEN)?;
    let mut out = [&asked[6..12], &asked[..6]].concat();
    if event.vlan_proto != 0 {
        out.extend(event.vlan_proto.to_be_bytes());
        out.extend(event.vlan_tci.to_be_bytes());
    }
    out.extend(&asked[12..]);
    // The ethertype is the last field, whatever tags stand before it.
    let ethertype = out.len() - 2;
    out[ethertype..].copy_from_slice(&eth_header([0; 6], [0; 6], v6)[12..]);
    Some(out)
}

/// A frame of these headers; both addresses are of one family.
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
