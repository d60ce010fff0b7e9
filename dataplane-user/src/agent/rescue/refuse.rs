//! Refuses packets that are not rescued.
use nodefence_common::{Event, EventKind, HEAD_LEN, Reason, RescueHead};

use crate::{dataplane::Injector, rescue::Fate};

/// Answers the sender at once, as without rescue. Returns the packet's fate.
pub(super) fn refuse(injector: &Injector, head: &RescueHead, frame: &[u8], why: Fate) -> Fate {
    if injector.answer_within_budget(&answer_event(head, frame)) { why } else { Fate::IcmpLimited }
}

/// The packet as an event that asks for an answer.
fn answer_event(head: &RescueHead, frame: &[u8]) -> Event {
    let len = frame.len().min(HEAD_LEN);
    let mut bytes = [0; HEAD_LEN];
    bytes[..len].copy_from_slice(&frame[..len]);
    Event {
        time_ns: head.time_ns,
        kind: EventKind::Answer as u32,
        reason: Reason::Rescue as u32,
        ifindex: head.ifindex,
        node: head.node,
        packet_len: head.frame_len,
        vlan_tci: head.vlan_tci,
        vlan_proto: head.vlan_proto,
        l3_offset: head.l3_offset,
        head_len: len as u16,
        zero: 0,
        head: bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_refused_is_answered_as_one_that_was_handed_over() {
        // A SYN in a tagged frame, longer than an event's head.
        let mut frame =
            [&[2; 12][..], &[0x81, 0, 0, 5, 8, 0], &[0x45, 0, 1, 0x2c, 0, 0, 0, 0, 64, 6, 0, 0]].concat();
        frame.extend([192, 0, 2, 9, 10, 244, 2, 7, 0x9c, 0x40, 0x1f, 0x90, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2]);
        frame.resize(18 + 300, 0);
        let head = RescueHead {
            time_ns: 7,
            ifindex: 3,
            ingress_ifindex: 4,
            node: 5,
            frame_len: frame.len() as u32,
            vlan_tci: 0,
            vlan_proto: 0,
            l3_offset: 18,
            zero: 0,
        };
        let event = answer_event(&head, &frame);
        assert_eq!(event.packet(), &frame[..HEAD_LEN]);
        assert_eq!((event.ifindex, event.packet_len, event.l3_offset), (3, 318, 18));
        let answer = crate::dataplane::answer::answer(&event).unwrap().frame;
        // RST|ACK to the sender that acknowledges the SYN and all its data.
        assert_eq!(answer[..4], [2, 2, 2, 2]);
        assert_eq!(answer[18 + 12..18 + 20], [10, 244, 2, 7, 192, 0, 2, 9]);
        assert_eq!(answer[18 + 28..18 + 32], (9 + 1 + 260_u32).to_be_bytes());
        assert_eq!(super::super::handed::length(&head, &frame), 300);
    }
}
