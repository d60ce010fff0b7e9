use netlink_packet_core::NetlinkBuffer;
use nodefence_common::{Addr, PortKey};
use proptest::prelude::*;

use super::{
    super::{
        Backends, Flow, Protocols, Tuple, Zone,
        remove::{FILTERS_AT_MOST, Steps},
        tests::{ENTRY, flow},
    },
    Filter, entry_request, filter_request,
};
use crate::netlink::attributes;

const POD: Addr = Addr::v4([10, 244, 2, 7]);

/// Type, flags and body.
fn parts(message: &[u8]) -> (u16, u16, &[u8]) {
    let header = NetlinkBuffer::new_checked(message).unwrap();
    assert_eq!(header.length() as usize, message.len());
    (header.message_type(), header.flags(), &message[16..])
}

fn key(port: u16, protocol: u8) -> PortKey {
    PortKey::endpoint(POD, port, protocol)
}

#[test]
fn an_entry_is_named_by_its_answers_zone_and_id() {
    const ID: &[u8] = &[8, 0, 12, 0, 0xde, 0xad, 0xbe, 0xef];
    let head = &ENTRY[..4];
    let reply = &ENTRY[56..108];
    let message = entry_request(&flow(), 7);
    let expected = [head, reply, &[6, 0, 18, 0, 0, 42, 0, 0], ID].concat();
    // IPCTNL_MSG_CT_DELETE; NLM_F_REQUEST | NLM_F_ACK.
    assert_eq!(parts(&message), (0x0102, 0x0005, &expected[..]));

    // The zone of one direction is in that direction's tuple. A zone of the original direction has no part in the lookup.
    let mut one = flow();
    one.zone = Some(Zone::Reply(5));
    let expected = [head, &[60, 0], &reply[2..], &[6, 0, 3, 0, 0, 5, 0, 0], ID].concat();
    assert_eq!(parts(&entry_request(&one, 7)).2, expected);
    one.zone = Some(Zone::Original(5));
    assert_eq!(parts(&entry_request(&one, 7)).2, [head, reply, ID].concat());
}

#[test]
#[rustfmt::skip]
fn a_filter_is_written_with_what_must_be_equal() {
    const SRC: &[u8] = &[12, 0, 1, 0x80, 8, 0, 1, 0, 10, 244, 2, 7];
    for (filter, tuple, flags) in [
        (
            Filter::protocol(POD, 17),
            [&[28, 0, 2, 0x80][..], SRC, &[12, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0]].concat(),
            1 | 8,
        ),
        (
            Filter::port(&key(8080, 6)).unwrap(),
            [
                &[36, 0, 2, 0x80][..],
                SRC,
                &[20, 0, 2, 0x80, 5, 0, 1, 0, 6, 0, 0, 0, 6, 0, 2, 0, 0x1f, 0x90, 0, 0],
            ]
            .concat(),
            1 | 8 | 16,
        ),
    ] {
        let message = filter_request(&filter, 7);
        let expected = [
            &[2, 0, 0, 0][..],
            &tuple,
            &[6, 0, 18, 0, 0, 0, 0, 0],
            &[12, 0, 25, 0x80, 8, 0, 2, 0],
            &u32::to_ne_bytes(flags),
        ].concat();
        assert_eq!(parts(&message), (0x0102, 0x0005, &expected[..]), "{filter:?}");
    }
    let v6 = "2001:db8::9".parse::<std::net::IpAddr>().unwrap().into();
    let message = filter_request(&Filter::protocol(v6, 17), 7);
    assert_eq!(message[16], 10);
    assert_eq!(message[20..48], [&[40, 0, 2, 0x80, 24, 0, 1, 0x80, 20, 0, 3, 0][..], &v6.bytes].concat());
}

#[test]
fn ports_that_the_kernel_does_not_compare_have_no_filter() {
    for (protocol, has) in [(6, true), (17, true), (132, false), (1, false), (33, false), (136, false)] {
        assert_eq!(Filter::port(&key(53, protocol)).is_some(), has, "{protocol}");
    }
}

#[test]
fn filters_say_what_the_backends_are() {
    let mut backends = Backends::new();
    assert_eq!(Steps::new(&backends, Protocols::All, true), Steps::default());
    backends.add_address(POD, ());
    let filters = |which| Steps::new(&backends, which, true).filters;
    let all = [6, 17, 132].map(|protocol| Filter::protocol(POD, protocol));
    assert_eq!(filters(Protocols::All), all);
    assert_eq!(filters(Protocols::Tcp), all[..1]);
    assert_eq!(filters(Protocols::Datagrams), all[1..]);
    assert_eq!(Steps::new(&backends, Protocols::Tcp, false), Steps { filters: vec![], dump: backends });

    let mut backends = Backends::new();
    for protocol in [17, 6, 132] {
        backends.add_port(key(53, protocol), ());
    }
    let sctp = || {
        let mut sctp = Backends::new();
        sctp.add_port(key(53, 132), ());
        sctp
    };
    let steps = |which| Steps::new(&backends, which, true);
    let port = |protocol| Filter::port(&key(53, protocol)).unwrap();
    assert_eq!(steps(Protocols::Tcp), Steps { filters: vec![port(6)], dump: Backends::new() });
    assert_eq!(steps(Protocols::Datagrams), Steps { filters: vec![port(17)], dump: sctp() });
    let all = steps(Protocols::All);
    assert_eq!((all.filters.len(), all.dump), (2, sctp()));
}

#[test]
fn many_backends_are_one_dump() {
    let mut backends = Backends::new();
    for last in 1..=FILTERS_AT_MOST {
        backends.add_address(Addr::v4([10, 244, 2, last as u8]), ());
    }
    assert!(Steps::new(&backends, Protocols::Tcp, true).dump.is_empty());
    backends.add_address(Addr::v4([10, 244, 3, 1]), ());
    assert_eq!(Steps::new(&backends, Protocols::Tcp, true), Steps { filters: vec![], dump: backends });
}

/// Whether the kernel cannot take the message for a flush: the first attribute is a tuple with an address of the message's family,
/// and a filter, where there is one, compares that address.
fn cannot_flush(message: &[u8]) -> bool {
    let (kind, _, body) = parts(message);
    let mut parts = attributes(&body[4..]);
    let Some((1 | 2, tuple)) = parts.next() else { return false };
    let Some((1, addresses)) = attributes(tuple).next() else { return false };
    let compares =
        parts.find(|(kind, _)| *kind == 25).map(|(_, filter)| attributes(filter).collect::<Vec<_>>());
    let (source, len) = if body[0] == 2 { (1, 4) } else { (3, 16) };
    kind == 0x0102
        && attributes(addresses).next().is_some_and(|(kind, value)| kind == source && value.len() == len)
        && compares.is_none_or(|flags| {
            matches!(flags[..], [(2, flags)] if u32::from_ne_bytes(flags.try_into().unwrap()) & 1 == 1)
        })
}

#[test]
fn the_check_against_flushes_sees_one() {
    let message = filter_request(&Filter::protocol(POD, 6), 1);
    assert!(cannot_flush(&message));
    let without = |at: usize, len: usize| {
        let mut shorter = [&message[..at], &message[at + len..]].concat();
        let total = shorter.len() as u32;
        shorter[..4].copy_from_slice(&total.to_ne_bytes());
        shorter
    };
    assert!(!cannot_flush(&without(20, 28)), "the tuple is gone");
    let mut blind = message.clone();
    *blind.last_chunk_mut().unwrap() = 8_u32.to_ne_bytes();
    assert!(!cannot_flush(&blind), "the address is not compared");
}

fn addr() -> impl Strategy<Value = Addr> {
    prop_oneof![any::<[u8; 4]>().prop_map(Addr::v4), any::<[u8; 16]>().prop_map(Addr::v6)]
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let ends = prop_oneof![
        (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| (Addr::v4(a), Addr::v4(b))),
        (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(a, b)| (Addr::v6(a), Addr::v6(b))),
    ];
    let zone = prop_oneof![
        Just(None),
        any::<u16>().prop_map(|id| Some(Zone::Both(id))),
        any::<u16>().prop_map(|id| Some(Zone::Original(id))),
        any::<u16>().prop_map(|id| Some(Zone::Reply(id))),
    ];
    let protocol = prop_oneof![Just(6), Just(17), Just(132), any::<u8>()];
    (ends, zone, protocol, any::<(u16, u16, u32)>()).prop_map(
        |((src, dst), zone, protocol, (src_port, dst_port, id))| {
            let orig = Tuple { src, dst, src_port, dst_port, protocol };
            let reply = Tuple { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol };
            Flow { orig, reply, tcp: None, liberal: false, status: 0, zone, id, timeout: 1 }
        },
    )
}

proptest! {
    #[test]
    fn no_request_can_be_taken_for_a_flush(flow in any_flow(), source in addr(), port: u16, protocol: u8) {
        prop_assert!(cannot_flush(&entry_request(&flow, 1)));
        let port = Filter::port(&PortKey::endpoint(source, port, protocol));
        for filter in [Some(Filter::protocol(source, protocol)), port].into_iter().flatten() {
            prop_assert!(cannot_flush(&filter_request(&filter, 1)));
        }
    }

    /// A deletion by dump and one by filter mean the same entries.
    #[test]
    fn a_filter_matches_what_the_backends_match(
        flow in any_flow(), whole: bool, same: bool, which in 0..3,
    ) {
        let which = [Protocols::All, Protocols::Tcp, Protocols::Datagrams][which as usize];
        let mut backends = Backends::new();
        let reply = flow.reply;
        let port = if same { reply.src_port } else { reply.src_port ^ 1 };
        if whole {
            backends.add_address(reply.src, ());
        } else {
            backends.add_port(PortKey::endpoint(reply.src, port, reply.protocol), ());
        }
        let steps = Steps::new(&backends, which, true);
        let matches = |filter: &Filter| {
            filter.source == reply.src
                && filter.protocol == reply.protocol
                && filter.port.is_none_or(|port| port == reply.src_port)
        };
        let dumped = which.includes(reply.protocol) && steps.dump.of_flow(&flow).is_some();
        let wanted = which.includes(reply.protocol) && backends.of_flow(&flow).is_some();
        prop_assert_eq!(steps.filters.iter().any(matches) || dumped, wanted);
    }
}
