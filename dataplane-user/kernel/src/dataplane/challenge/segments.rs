//! Which flows are challenged, and by which segment. Pure.
//!
//! conntrack decides whether a challenge is translated on its way to the client, and it knows numbers that we do not
//! (ctnetlink shows no sequence). By net/netfilter/nf_conntrack_proto_tcp.c of 5.10, 6.1 and 6.18:
//!
//! - A SYN|ACK in the reply direction of a flow past its handshake is "ignored": accepted and translated whatever its numbers
//!   are (table `tcp_conntracks`, sIG). The client answers with a challenge ACK (RFC 5961 section 4.2). One segment, no stray ones.
//!   Kernels before 6.0 send at most 1,000 challenge ACKs a second and host (`tcp_challenge_ack_limit`, lifted by 79e3602caa6f).
//! - A bare ACK is translated where neither number lies ahead of what conntrack has seen. Both are unknown, so it takes four,
//!   2^31 apart, of which one is translated. The client answers with a duplicate ACK, limited only per socket. The three others
//!   stay untranslated: the cut drops what they cause.
//! - Before 6.1 an ACK far in the past is INVALID like one ahead. Where the flow is liberal (see [`crate::conntrack`]), any passes.
//!
//! Measured on 6.18 through DNAT and masquerade, 40 flows each, random numbers: one bare ACK reached 5 clients, two 2^31 apart in both
//! numbers 17, four 40, one SYN|ACK 40; the ACKs caused 35, 63 and 120 stray RSTs, the SYN|ACK none.
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
/// Source of injected frames: locally administered, nobody's.
const NOBODY: [u8; 6] = [0x02, 0x6e, 0x66, 0, 0, 1];
/// Any window but 0, which would shorten the entry's life.
const WINDOW: u16 = 512;

/// What to do with a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Its client may wait: challenge.
    Challenge,
    /// A RST was seen.
    Closed,
    /// Nobody to challenge.
    NotTcp,
    /// The handshake is not over.
    Opening,
    /// Both sides have closed.
    Ended,
}

/// Chooses by conntrack's state of the flow.
pub fn choose(flow: &Flow) -> Choice {
    match flow.tcp {
        Some(TcpState::Established | TcpState::FinWait | TcpState::CloseWait | TcpState::LastAck) => {
            Choice::Challenge
        }
        // The client may have its SYN|ACK already and wait, with its ACK still under way.
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

/// Builds the frames that challenge the client of `flow`, as its backend would have sent them. `mac` is the entry device's own; without one
/// the Ethernet header is a dummy.
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
