use netlink_packet_core::NetlinkBuffer;
use nodefence_common::{Addr, PortKey};
use proptest::prelude::*;

use super::{
    Backends, Family, Flow, TcpState, Tuple, Zone,
    codec::{Direction, dump_request, entry_request, liberal_request, lookup_request, parse},
    status,
};

/// An entry in the layout that Linux sends: 192.0.2.9:40000 -> 198.51.100.1:80, answered by 10.244.2.7:8080 to 10.2.0.11:50000.
#[rustfmt::skip]
pub(super) const ENTRY: &[u8] = &[
    2, 0, 0, 0, // nfgenmsg
    52, 0, 1, 0x80, // CTA_TUPLE_ORIG
        20, 0, 1, 0x80, 8, 0, 1, 0, 192, 0, 2, 9, 8, 0, 2, 0, 198, 51, 100, 1,
        28, 0, 2, 0x80, 5, 0, 1, 0, 6, 0, 0, 0, 6, 0, 2, 0, 0x9c, 0x40, 0, 0, 6, 0, 3, 0, 0, 80, 0, 0,
    52, 0, 2, 0x80, // CTA_TUPLE_REPLY
        20, 0, 1, 0x80, 8, 0, 1, 0, 10, 244, 2, 7, 8, 0, 2, 0, 10, 2, 0, 11,
        28, 0, 2, 0x80, 5, 0, 1, 0, 6, 0, 0, 0, 6, 0, 2, 0, 0x1f, 0x90, 0, 0, 6, 0, 3, 0, 0xc3, 0x50, 0, 0,
    8, 0, 3, 0, 0, 0, 1, 0xbe, // CTA_STATUS
    8, 0, 7, 0, 0, 6, 0x97, 0x7f, // CTA_TIMEOUT
    48, 0, 4, 0x80, // CTA_PROTOINFO
        44, 0, 1, 0x80, 5, 0, 1, 0, 3, 0, 0, 0, 5, 0, 2, 0, 7, 0, 0, 0, 5, 0, 3, 0, 7, 0, 0, 0,
        6, 0, 4, 0, 0x23, 0, 0, 0, 6, 0, 5, 0, 0x23, 0, 0, 0,
    8, 0, 12, 0, 0xde, 0xad, 0xbe, 0xef, // CTA_ID
    8, 0, 11, 0, 0, 0, 0, 1, // CTA_USE
    6, 0, 18, 0, 0, 42, 0, 0, // CTA_ZONE
];

pub(super) fn flow() -> Flow {
    Flow {
        orig: Tuple {
            src: Addr::v4([192, 0, 2, 9]),
            dst: Addr::v4([198, 51, 100, 1]),
            src_port: 40_000,
            dst_port: 80,
            protocol: 6,
        },
        reply: Tuple {
            src: Addr::v4([10, 244, 2, 7]),
            dst: Addr::v4([10, 2, 0, 11]),
            src_port: 8080,
            dst_port: 50_000,
            protocol: 6,
        },
        tcp: Some(TcpState::Established),
        liberal: false,
        status: 0x1be,
        zone: Some(Zone::Both(42)),
        id: 0xdead_beef,
        timeout: 431_999,
    }
}

#[test]
fn an_entry_is_read() {
    let parsed = parse(ENTRY).unwrap();
    assert_eq!(parsed, flow());
    assert_eq!(parsed.backend(), "10.244.2.7:8080".parse().unwrap());
    let nat = status::SEEN_REPLY | status::ASSURED | status::SRC_NAT | status::DST_NAT;
    assert_eq!(parsed.status & nat, nat);
    let mut liberal = ENTRY.to_vec();
    let flags = ENTRY.windows(6).rposition(|window| window == [6, 0, 5, 0, 0x23, 0]).unwrap() + 4;
    liberal[flags] |= 8;
    assert_eq!(parse(&liberal).unwrap(), Flow { liberal: true, ..flow() });
}

#[test]
fn a_cut_off_entry_is_no_flow_or_a_smaller_one() {
    for len in 0..ENTRY.len() {
        // Both tuples end at byte 108; what follows may be missing.
        assert_eq!(parse(&ENTRY[..len]).is_some(), len >= 108, "{len}");
    }
}

#[test]
fn only_the_backend_s_own_flows_match() {
    let flow = flow();
    let mut backends = Backends::new();
    assert!(backends.is_empty() && backends.of_flow(&flow).is_none());
    // The client, the service and this node are not the backend.
    for other in [[192, 0, 2, 9], [198, 51, 100, 1], [10, 2, 0, 11]] {
        backends.add_address(Addr::v4(other), ());
    }
    assert!(backends.of_flow(&flow).is_none());
    backends.add_address(Addr::v4([10, 244, 2, 7]), ());
    assert!(backends.of_flow(&flow).is_some());

    let key = PortKey::endpoint(flow.reply.src, 8080, 6);
    for (key, matches) in [
        (key, true),
        (PortKey { port: 8081, ..key }, false),
        (PortKey { protocol: 17, ..key }, false),
        (PortKey { addr: flow.reply.dst, ..key }, false),
    ] {
        let mut backends = Backends::new();
        backends.add_port(key, ());
        assert_eq!(backends.of_flow(&flow).is_some(), matches, "{key:?}");
        assert_eq!(backends.addresses().collect::<Vec<_>>(), [key.addr]);
    }
}

#[test]
fn the_liberal_request_names_one_entry_and_sets_one_flag() {
    let message = liberal_request(&flow(), 7);
    let header = NetlinkBuffer::new_checked(&message[..]).unwrap();
    assert_eq!(header.length() as usize, message.len());
    // IPCTNL_MSG_CT_NEW; NLM_F_REQUEST | NLM_F_ACK: no CREATE, no REPLACE.
    assert_eq!((header.message_type(), header.flags(), header.sequence_number()), (0x0100, 0x0005, 7));
    let body = header.payload();
    #[rustfmt::skip]
    let expected = [
        &ENTRY[..56], // nfgenmsg, CTA_TUPLE_ORIG
        &[6, 0, 18, 0, 0, 42, 0, 0][..],
        &[8, 0, 12, 0, 0xde, 0xad, 0xbe, 0xef],
        &[16, 0, 4, 0x80, 12, 0, 1, 0x80, 6, 0, 5, 0, 8, 8, 0, 0],
    ].concat();
    assert_eq!(body, expected);

    let v6 = "2001:db8::9".parse::<std::net::IpAddr>().unwrap().into();
    let mut other = flow();
    other.orig.src = v6;
    other.orig.dst = v6;
    other.zone = Some(Zone::Reply(5));
    let message = liberal_request(&other, 7);
    assert_eq!(message[16], libc::AF_INET6 as u8);
    let read = parse(&[&message[16..20], &message[20..]].concat()).unwrap();
    assert_eq!((read.orig, read.reply, read.zone, read.id), (other.orig, other.reply, other.zone, other.id));
}

#[test]
fn the_dump_request_asks_for_one_family() {
    for (family, raw) in [(Family::V4, 2), (Family::V6, 10)] {
        let message = dump_request(family, 9);
        let header = NetlinkBuffer::new_checked(&message[..]).unwrap();
        // IPCTNL_MSG_CT_GET, NLM_F_REQUEST | NLM_F_DUMP.
        assert_eq!((header.message_type(), header.flags()), (0x0101, 0x0301));
        assert_eq!(header.payload(), [raw, 0, 0, 0]);
    }
}

#[test]
fn a_lookup_names_one_tuple_of_one_direction() {
    let flow = flow();
    for (tuple, direction, at) in
        [(flow.orig, Direction::Original, 4..56), (flow.reply, Direction::Reply, 56..108)]
    {
        for (zone, tail) in [(0, &[][..]), (42, &[6, 0, 18, 0, 0, 42, 0, 0])] {
            let message = lookup_request(&tuple, direction, zone, 9);
            let header = NetlinkBuffer::new_checked(&message[..]).unwrap();
            // IPCTNL_MSG_CT_GET; NLM_F_REQUEST | NLM_F_ACK: no dump.
            assert_eq!((header.message_type(), header.flags()), (0x0101, 0x0005));
            assert_eq!(header.payload(), [&ENTRY[..4], &ENTRY[at.clone()], tail].concat());
        }
    }
}

#[test]
fn a_lookup_of_an_entry_names_its_answers_and_zone() {
    for (zone, tail) in [
        (Some(Zone::Both(42)), &[6, 0, 18, 0, 0, 42, 0, 0][..]),
        // A zone of the original direction has no part in the reply direction.
        (Some(Zone::Original(42)), &[]),
        (None, &[]),
    ] {
        let message = entry_request(&Flow { zone, ..flow() }, 9);
        let header = NetlinkBuffer::new_checked(&message[..]).unwrap();
        // IPCTNL_MSG_CT_GET; NLM_F_REQUEST: the entry is the answer, or an error.
        assert_eq!((header.message_type(), header.flags()), (0x0101, 0x0001));
        assert_eq!(header.payload(), [&ENTRY[..4], &ENTRY[56..108], tail].concat(), "{zone:?}");
    }
    let message = entry_request(&Flow { zone: Some(Zone::Reply(42)), ..flow() }, 9);
    // CTA_TUPLE_ZONE, inside the tuple.
    assert!(message.ends_with(&[6, 0, 3, 0, 0, 42, 0, 0]), "{message:?}");
}

#[test]
fn states_have_the_kernel_s_numbers() {
    assert_eq!(TcpState::from(3), TcpState::Established);
    assert_eq!(TcpState::from(8), TcpState::Close);
    assert_eq!(TcpState::from(200), TcpState::Unknown(200));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
        let _ = crate::netlink::messages(&bytes).count();
        let _ = super::blind::exempting(&bytes);
    }

    #[test]
    fn a_mutated_entry_never_panics(changes in prop::collection::vec((0..ENTRY.len(), any::<u8>()), 1..6), len in 0..=ENTRY.len()) {
        let mut entry = ENTRY.to_vec();
        for (at, byte) in changes { entry[at] = byte; }
        let _ = parse(&entry[..len]);
        let mut datagram = ENTRY.len().to_ne_bytes()[..4].to_vec();
        datagram.extend_from_slice(&[0; 12]);
        datagram.extend_from_slice(&entry[..len]);
        for message in crate::netlink::messages(&datagram) {
            let _ = parse(message.payload());
        }
    }
}
