//! Chooses which flows are challenged, and by which segment. Pure.
//!
//! conntrack decides whether a challenge is translated on its way to the client. conntrack knows sequence numbers that nodefence does not
//! know (ctnetlink shows none). By net/netfilter/nf_conntrack_proto_tcp.c of 5.10, 6.1 and 6.18:
//!
//! - A SYN|ACK in the reply direction of a flow past its handshake is "ignored": accepted and translated whatever its numbers are (table
//!   `tcp_conntracks`, sIG). The client answers with a challenge ACK (RFC 5961 section 4.2). This takes one segment, and causes no stray
//!   RSTs. Kernels before 6.0 send at most 1,000 challenge ACKs a second for the whole host (`tcp_challenge_ack_limit`, lifted by
//!   79e3602caa6f).
//! - A bare ACK is translated if neither of its numbers lies ahead of what conntrack has seen. Both numbers are unknown, so this takes four
//!   ACKs, 2^31 apart, of which one is translated. The client answers with a duplicate ACK, which Linux limits only per socket. The three
//!   others are not translated, and the cut drops what they cause.
//! - Before 6.1 an ACK far in the past is INVALID, like an ACK ahead. If the flow is liberal (see [`crate::conntrack`]), any ACK is
//!   translated.
//!
//! Measured on 6.18 through DNAT and masquerade, 40 flows each, random numbers:
//!
//! - One bare ACK reached 5 clients, and caused 35 stray RSTs.
//! - Two ACKs, 2^31 apart in both numbers, reached 17 clients, and caused 63 stray RSTs.
//! - Four ACKs reached 40 clients, and caused 120 stray RSTs.
//! - One SYN|ACK reached 40 clients, and caused no stray RST.
use std::hash::{BuildHasher as _, RandomState};

use nodefence_common::packet::{
    Sum, TCP_LEN, TcpHeader, eth_header, protocol, pseudo, tcp_flags, tcp_header,
};

use crate::{
    conntrack::{Flow, TcpState},
    dataplane::answer::ip_frame,
};

/// Half of the sequence space.
const HALF: u32 = 1 << 31;
/// Source MAC address of injected frames: locally administered, and no device's own.
const NOBODY: [u8; 6] = [0x02, 0x6e, 0x66, 0, 0, 1];
/// A window of 0 would shorten the entry's life. Any other window will do.
const WINDOW: u16 = 512;

/// What to do with a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The client may wait: challenge it.
    Challenge,
    /// A RST was seen.
    Closed,
    /// Not TCP: a challenge is not possible.
    NotTcp,
    /// The handshake is not over.
    Opening,
    /// Both sides have closed.
    Ended,
}

/// Chooses by the flow's state in conntrack.
pub fn choose(flow: &Flow) -> Choice {
    match flow.tcp {
        Some(TcpState::Established | TcpState::FinWait | TcpState::CloseWait | TcpState::LastAck) => {
            Choice::Challenge
        }
        // The client may already have the SYN|ACK and wait for an answer, while its ACK is still under way.
        Some(TcpState::SynRecv) => Choice::Challenge,
        Some(TcpState::Close) => Choice::Closed,
        Some(TcpState::None | TcpState::SynSent | TcpState::SynSent2) => Choice::Opening,
        Some(TcpState::TimeWait) => Choice::Ended,
        Some(TcpState::Unknown(_)) => Choice::Challenge,
        None => Choice::NotTcp,
    }
}

/// The segments that challenge one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Challenge {
    /// One SYN|ACK with any numbers.
    SynAck,
    /// One bare ACK with any numbers, for flows that are liberal.
    OneAck,
    /// Four bare ACKs, of which one lies in the past in both numbers.
    FourAcks,
}

impl Challenge {
    /// How many segments the challenge takes.
    pub const fn segments(self) -> usize {
        match self {
            Self::SynAck | Self::OneAck => 1,
            Self::FourAcks => 4,
        }
    }
}

/// Builds the frames that challenge the client of `flow`, as its backend would have sent them. `mac` is the MAC address of the entry
/// device. Without a MAC address the Ethernet header is a dummy.
pub fn frames(flow: &Flow, mac: Option<[u8; 6]>, challenge: Challenge, mut emit: impl FnMut(Vec<u8>)) {
    let reply = &flow.reply;
    let (to, from) = mac.map_or(([0; 6], [0; 6]), |mac| (mac, NOBODY));
    let link = eth_header(to, from, reply.src.as_v4().is_none());
    let pseudo = pseudo(&reply.src, &reply.dst, protocol::TCP, TCP_LEN as u32);
    let random = RandomState::new().hash_one(reply);
    let seq = random as u32;
    let ack = (random >> 32) as u32;
    let mut segment = |flags, seq, ack| {
        let tcp =
            TcpHeader { src_port: reply.src_port, dst_port: reply.dst_port, seq, ack, flags, window: WINDOW };
        let header = tcp_header(&tcp, pseudo, Sum::Full);
        emit(ip_frame(&link, &reply.src, &reply.dst, protocol::TCP, &header, &[]));
    };
    match challenge {
        Challenge::SynAck => segment(tcp_flags::SYN | tcp_flags::ACK, seq, ack),
        Challenge::OneAck => segment(tcp_flags::ACK, seq, ack),
        Challenge::FourAcks => {
            for (seq, ack) in [(seq, ack), (seq ^ HALF, ack), (seq, ack ^ HALF), (seq ^ HALF, ack ^ HALF)] {
                segment(tcp_flags::ACK, seq, ack);
            }
        }
    }
}
