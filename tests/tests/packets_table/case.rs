//! A case of the table: a packet, and the expected result.
use std::net::IpAddr;

use nodefence_common::Reason;
use nodefence_tests::{
    packet_check::ExpectedAnswer,
    packet_frame::{Frame, Transport},
    packet_world::{v4, v6},
};

pub(crate) const SEQ: u32 = 0x1122_3344;
const ACK: u32 = 0x8899_aabb;
pub(crate) const FIN_FLAG: u8 = 1;
pub(crate) const SYN_FLAG: u8 = 2;
pub(crate) const RST_FLAG: u8 = 4;
pub(crate) const PSH_FLAG: u8 = 8;
pub(crate) const ACK_FLAG: u8 = 16;
pub(crate) const PAYLOAD: u32 = 9;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Want {
    Pass,
    Counted(Reason),
    Drop(Reason),
    Answer(ExpectedAnswer),
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) frame: Frame,
    pub(crate) want: Want,
}

/// The source address. In a frame that starts with the IP header the kernel reads two bytes of this address as the ethertype.
pub(crate) fn client(sixth: bool) -> IpAddr {
    if sixth { "2001:db8:86dd::5" } else { "8.0.5.5" }.parse().expect("an address")
}

pub(crate) fn frame(sixth: bool, node: u32, transport: Transport) -> Frame {
    Frame::new(client(sixth), if sixth { v6(node) } else { v4(node) }, transport)
}

pub(crate) fn tcp(flags: u8) -> Transport {
    Transport::Tcp { seq: SEQ, ack: ACK, flags }
}

pub(crate) fn reset() -> Want {
    Want::Answer(ExpectedAnswer::Reset(ACK))
}

pub(crate) fn refuse(more: u32) -> Want {
    Want::Answer(ExpectedAnswer::Refuse(SEQ + PAYLOAD + more))
}

#[derive(Default)]
pub(crate) struct Table(pub(crate) Vec<Case>);

impl Table {
    pub(crate) fn add(&mut self, name: &str, frame: Frame, want: Want) {
        let family = if frame.src.is_ipv6() { 6 } else { 4 };
        self.0.push(Case { name: format!("{name}, IPv{family}"), frame, want });
    }

    pub(crate) fn edited(&mut self, name: &str, mut frame: Frame, edit: impl FnOnce(&mut Frame), want: Want) {
        edit(&mut frame);
        self.add(name, frame, want);
    }
}
