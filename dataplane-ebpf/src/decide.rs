//! What happens to a packet whose destination is a backend. Pure: map values and headers in, a decision out.
use nodefence_common::{
    Action, Addr, Reason, Verdict,
    packet::{Packet, Sum, TCP_LEN, TcpHeader, marks, protocol, pseudo, tcp_flags, tcp_header},
};

/// What a node's entry says of a backend that points to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing that concerns a packet: it passes and is not counted.
    Pass,
    /// The packet passes and is counted.
    Counted(Reason),
    /// The packet is subject to this action.
    Subject(Action),
}

/// The plain values of a node's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// [`nodefence_common::NodeEntry::verdict`].
    pub verdict: u32,
    /// [`nodefence_common::NodeEntry::action`].
    pub action: u32,
    /// [`nodefence_common::NodeEntry::generation`].
    pub generation: u32,
    /// [`nodefence_common::NodeEntry::until`].
    pub until: u64,
}

/// Judges a node's entry at `now` (CLOCK_MONOTONIC nanoseconds) for a backend that was written for `generation`.
#[inline(always)]
pub const fn standing(node: &Node, generation: u32, now: u64) -> Standing {
    if node.verdict == Verdict::Healthy as u32 {
        return Standing::Pass;
    }
    let action = match Action::from_raw(node.action) {
        Some(Action::Ignore) | None => return Standing::Pass,
        Some(action) => action,
    };
    if node.generation != generation {
        return Standing::Counted(Reason::Stale);
    }
    if node.until <= now {
        return Standing::Counted(Reason::Lapsed);
    }
    Standing::Subject(action)
}

/// The answer a packet gets in place of the backend's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// RST whose sequence number is this.
    Reset {
        /// Sequence number.
        seq: u32,
    },
    /// RST|ACK with sequence 0 that acknowledges this.
    Refuse {
        /// Acknowledgement number.
        ack: u32,
    },
    /// ICMP or ICMPv6 port unreachable.
    Unreachable,
}

impl Rejection {
    /// TCP header of the answer to a segment: from the addressed port, window 0, no options.
    #[inline(always)]
    pub fn tcp(self, packet: &Packet, how: Sum) -> [u32; TCP_LEN / 4] {
        let (seq, ack, flags) = match self {
            Self::Reset { seq } => (seq, 0, tcp_flags::RST),
            Self::Refuse { ack } => (0, ack, tcp_flags::RST | tcp_flags::ACK),
            Self::Unreachable => (0, 0, tcp_flags::RST),
        };
        let (src_port, dst_port) = (packet.dst_port, packet.src_port);
        let pseudo = pseudo(&packet.dst, &packet.src, protocol::TCP, TCP_LEN as u32);
        tcp_header(&TcpHeader { src_port, dst_port, seq, ack, flags, window: 0 }, pseudo, how)
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Passes, not counted.
    Pass,
    /// Passes, counted.
    Counted(Reason),
    /// Dropped without answer, counted.
    Drop(Reason),
    /// Dropped and answered.
    Answer(Rejection),
}

/// How a packet's destination is matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The address belongs to the backend alone.
    Address,
    /// A host-network backend: only some ports of the address are its own.
    Port,
}

/// What becomes of a packet without ports, or with unknown ones, to a port-scoped address; `None` where it has them.
#[inline(always)]
pub const fn portless(packet: &Packet) -> Option<Decision> {
    if packet.is(marks::FRAGMENT) {
        return Some(Decision::Counted(Reason::FragmentPassed));
    }
    match packet.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => None,
        _ => Some(Decision::Pass),
    }
}

/// The reason under which a packet is counted that passes because its port, or its address, is exempt.
#[inline(always)]
pub const fn exempt_reason(packet: &Packet) -> Reason {
    if packet.is(marks::FRAGMENT) { Reason::FragmentPassed } else { Reason::Exempt }
}

/// Decides on a packet to a backend whose node is subject to `action`. The caller has found out before that the packet is not exempt,
/// and for [`Scope::Port`] has called [`portless`] and looked the port up.
#[inline(always)]
pub fn decide(packet: &Packet, scope: Scope, action: Action) -> Decision {
    let readable = packet.is(marks::TRANSPORT);
    if matches!(scope, Scope::Address)
        && packet.v6
        && readable
        && packet.protocol == protocol::ICMPV6
        && matches!(packet.kind, 133..=137)
    {
        return Decision::Counted(Reason::NeighbourDiscovery);
    }
    match action {
        Action::Ignore => return Decision::Pass,
        Action::Observe => return Decision::Counted(Reason::Observed),
        Action::Drop | Action::Refuse => {}
    }
    if packet.is(marks::FRAGMENT) {
        return Decision::Drop(Reason::FragmentDropped);
    }
    if matches!(action, Action::Drop)
        || packet.is(marks::LINK_GROUP | marks::WAYPOINT)
        || !unicast(&packet.src, packet.v6)
        || !unicast(&packet.dst, packet.v6)
    {
        return Decision::Drop(Reason::Dropped);
    }
    match packet.protocol {
        protocol::TCP => tcp(packet),
        protocol::UDP => Decision::Answer(Rejection::Unreachable),
        _ => Decision::Drop(Reason::Dropped),
    }
}

#[inline(always)]
const fn tcp(packet: &Packet) -> Decision {
    let flags = packet.kind;
    if flags & tcp_flags::RST != 0 {
        return Decision::Drop(Reason::Dropped);
    }
    if flags & tcp_flags::ACK != 0 {
        return Decision::Answer(Rejection::Reset { seq: packet.ack });
    }
    // The acknowledgement covers all that takes up sequence space: RFC 9293 section 3.10.7.1.
    let syn = (flags & tcp_flags::SYN != 0) as u32;
    let fin = (flags & tcp_flags::FIN != 0) as u32;
    Decision::Answer(Rejection::Refuse {
        ack: packet.seq.wrapping_add(packet.payload).wrapping_add(syn).wrapping_add(fin),
    })
}

/// Whether a packet that would be answered can be rescued instead, so that kube-proxy picks another backend: a SYN that opens a connection, or a
/// datagram. A packet with options or extension headers is not rescued, since these may say where it must go.
#[inline(always)]
pub const fn rescuable(packet: &Packet) -> bool {
    const OPENS: u8 = tcp_flags::FIN | tcp_flags::SYN | tcp_flags::RST | tcp_flags::ACK;
    if packet.marks & (marks::EXTENDED | marks::FRAGMENT) != 0 {
        return false;
    }
    match packet.protocol {
        protocol::TCP => packet.kind & OPENS == tcp_flags::SYN,
        protocol::UDP => true,
        _ => false,
    }
}

/// Whether an answer may be sent to an address: not unspecified, loopback, multicast or broadcast.
#[inline(always)]
pub fn unicast(addr: &Addr, v6: bool) -> bool {
    let words = addr.words();
    let first = u32::from_be(words[0]);
    let last = u32::from_be(words[3]);
    if v6 {
        // ff00::/8, :: and ::1.
        first >> 24 != 0xff && (words[0] | words[1] | words[2] != 0 || last > 1)
    } else {
        // 0.0.0.0/8 (RFC 1122 section 3.2.1.3), 127.0.0.0/8, 224.0.0.0/4 and 240.0.0.0/4 with the broadcast address.
        let net = last >> 24;
        net != 0 && net != 127 && net < 224
    }
}
