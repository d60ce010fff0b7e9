//! What the kernel program could not answer in place: pure, event in, frame out.
//!
//! The egress program dropped the packet and sent its head; from that this room builds the answer that the packet would
//! have got from a closed port, as a frame that enters as ingress of the same device ([`super`]'s injector).
use nodefence_common::{Event, EventKind};

pub(crate) mod frame;
mod parse;

pub use parse::Unanswerable;

use frame::{Addresses, Link, TcpHeader, icmp_unreachable, tcp_flags, tcp_frame};
use parse::{Packet, Segment, Transport};

/// An ICMP error carries at most as much of the original as keeps it within 576 bytes (RFC 1812 section 4.3.2.3).
const ICMP_MAX: usize = 576;
/// An ICMPv6 error stays within the IPv6 minimum MTU (RFC 4443 section 2.4 c).
const ICMPV6_MAX: usize = 1280;

/// The frame that answers the packet of `event`, to be injected as ingress of `event.ifindex`.
///
/// TCP with ACK: RST with the segment's ACK number. TCP without: RST|ACK that acknowledges all it carries (RFC 9293 section
/// 3.10.7.1). UDP: ICMP or ICMPv6 port unreachable with as much of the original as was captured and may be sent. All
/// checksums are full; MAC addresses are swapped; an accelerated VLAN tag stands in the frame again; a packet of a device
/// without link layer gets a dummy Ethernet header.
///
/// # Errors
/// [`Unanswerable`], where the packet has no answer.
pub fn answer(event: &Event) -> Result<Vec<u8>, Unanswerable> {
    if EventKind::from_raw(event.kind) != Some(EventKind::Answer) {
        return Err(Unanswerable::Kind(event.kind));
    }
    let packet = Packet::parse(event)?;
    let link = Link::answer_to(event, &packet)?;
    let back = Addresses { src: packet.dst, dst: packet.src };
    match packet.transport {
        Transport::Tcp(segment) => Ok(tcp_frame(&link, &back, &reset(&segment)?)),
        Transport::Udp => {
            let (max, headers) = if packet.is_v4() { (ICMP_MAX, 28) } else { (ICMPV6_MAX, 48) };
            let quoted = &packet.bytes[..packet.bytes.len().min(max - headers)];
            Ok(icmp_unreachable(&link, &back, quoted))
        }
    }
}

/// The reset of RFC 9293 section 3.10.7.1 for a segment to a connection that does not exist.
fn reset(segment: &Segment) -> Result<TcpHeader, Unanswerable> {
    if segment.flags & tcp_flags::RST != 0 {
        return Err(Unanswerable::Never("a RST"));
    }
    let (seq, ack, flags) = if segment.flags & tcp_flags::ACK != 0 {
        (segment.ack, 0, tcp_flags::RST)
    } else {
        let syn = u32::from(segment.flags & tcp_flags::SYN != 0);
        let fin = u32::from(segment.flags & tcp_flags::FIN != 0);
        let end = segment.seq.wrapping_add(segment.payload_len).wrapping_add(syn).wrapping_add(fin);
        (0, end, tcp_flags::RST | tcp_flags::ACK)
    };
    Ok(TcpHeader { src_port: segment.dst_port, dst_port: segment.src_port, seq, ack, flags, window: 0 })
}

#[cfg(test)]
mod tests;
