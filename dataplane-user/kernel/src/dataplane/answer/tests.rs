//! etherparse is the independent reader. It shares no code with what is tested.
use etherparse::{
    Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, icmpv4, icmpv6,
};
use nodefence_common::{Addr, Event, EventKind, HEAD_LEN, packet::Skip};
use proptest::prelude::*;

use super::Unanswerable;

const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const CLIENT: [u8; 4] = [192, 0, 2, 9];
const BACKEND: [u8; 4] = [10, 244, 2, 7];
const CLIENT6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const BACKEND6: [u8; 16] = [0xfd, 0, 0, 0x24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

fn answer(event: &Event) -> Result<Vec<u8>, Unanswerable> {
    super::answer(event).map(|answer| answer.frame)
}

fn event(packet: &[u8], l3_offset: usize) -> Event {
    let mut head = [0; HEAD_LEN];
    let len = packet.len().min(HEAD_LEN);
    head[..len].copy_from_slice(&packet[..len]);
    Event {
        time_ns: 1,
        kind: EventKind::Answer as u32,
        reason: 4,
        ifindex: 7,
        node: 3,
        packet_len: packet.len() as u32,
        vlan_tci: 0,
        vlan_proto: 0,
        l3_offset: l3_offset as u16,
        head_len: len as u16,
        zero: 0,
        head,
    }
}

fn tcp_v4(flags: &str, payload: usize) -> Vec<u8> {
    let mut step = PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC).ipv4(CLIENT, BACKEND, 63).tcp(
        40_000,
        8080,
        0xffff_fff0,
        512,
    );
    for flag in flags.chars() {
        step = match flag {
            'A' => step.ack(0xdead_beef),
            'S' => step.syn(),
            'F' => step.fin(),
            'R' => step.rst(),
            _ => step.psh(),
        };
    }
    write(|out, data| step.write(out, data).unwrap(), payload)
}

fn write(write: impl FnOnce(&mut Vec<u8>, &[u8]), payload: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, &vec![0x5a; payload]);
    out
}

/// Parses a frame and checks all its checksums. Returns the parsed frame.
fn check(frame: &[u8]) -> SlicedPacket<'_> {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 header checksum");
            let l3 = 14 + 4 * packet.vlan_ids().len();
            assert_eq!(usize::from(header.total_len), frame.len() - l3);
            match packet.transport.as_ref().unwrap() {
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(
                        tcp.checksum(),
                        tcp.calc_checksum_ipv4(header.source, header.destination).unwrap()
                    );
                }
                TransportSlice::Icmpv4(icmp) => {
                    assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
                }
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            assert_eq!(usize::from(header.payload_length), frame.len() - 54);
            match packet.transport.as_ref().unwrap() {
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(
                        tcp.checksum(),
                        tcp.calc_checksum_ipv6(header.source, header.destination).unwrap()
                    );
                }
                TransportSlice::Icmpv6(icmp) => {
                    assert!(icmp.is_checksum_valid(header.source, header.destination));
                }
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
    packet
}

fn assert_swapped(packet: &SlicedPacket<'_>) {
    let link = packet.link.as_ref().unwrap().to_header();
    let ethernet = link.and_then(|link| link.ethernet2()).unwrap();
    assert_eq!((ethernet.source, ethernet.destination), (NODE_MAC, CLIENT_MAC));
    match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            assert_eq!((ip.header().source(), ip.header().destination()), (BACKEND, CLIENT));
            assert!(ip.header().dont_fragment());
            assert_eq!(ip.header().ttl(), 64);
        }
        NetSlice::Ipv6(ip) => {
            assert_eq!((ip.header().source(), ip.header().destination()), (BACKEND6, CLIENT6));
            assert_eq!(ip.header().hop_limit(), 64);
        }
        other => panic!("{other:?}"),
    }
}

/// (seq, ack, has ACK) of an answer that must be a RST between the swapped ports.
fn reset_of(packet: &SlicedPacket<'_>) -> (u32, u32, bool) {
    let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { panic!("{packet:?}") };
    assert_eq!((tcp.source_port(), tcp.destination_port()), (8080, 40_000));
    assert!(tcp.rst() && !tcp.syn() && !tcp.fin() && !tcp.psh() && !tcp.urg());
    assert!(tcp.payload().is_empty() && tcp.options().is_empty());
    (tcp.sequence_number(), tcp.acknowledgment_number(), tcp.ack())
}

#[test]
fn a_segment_with_ack_gets_an_exact_reset() {
    for (flags, payload) in [("A", 0), ("AP", 100), ("AF", 0), ("SA", 0), ("AP", 5_000)] {
        let frame = answer(&event(&tcp_v4(flags, payload), 14)).unwrap();
        assert_eq!(frame.len(), 14 + 20 + 20);
        let packet = check(&frame);
        assert_swapped(&packet);
        assert_eq!(reset_of(&packet), (0xdead_beef, 0, false), "{flags}");
    }
}

#[test]
fn a_segment_without_ack_is_refused_with_all_it_carries() {
    for (flags, payload, carried) in
        [("S", 0, 1), ("S", 9, 10), ("F", 3, 4), ("SF", 0, 2), ("", 7, 7), ("", 1400, 1400)]
    {
        let packet = answer(&event(&tcp_v4(flags, payload), 14)).unwrap();
        let packet = check(&packet);
        assert_swapped(&packet);
        assert_eq!(reset_of(&packet), (0, 0xffff_fff0_u32.wrapping_add(carried), true), "{flags}");
    }
}

#[test]
fn a_reset_is_never_answered() {
    for flags in ["R", "RA"] {
        assert_eq!(answer(&event(&tcp_v4(flags, 0), 14)), Err(Unanswerable::Never));
    }
}

#[test]
fn ipv4_options_and_tcp_options_are_stepped_over() {
    let mut original = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC)
        .ip(etherparse::IpHeaders::Ipv4(
            etherparse::Ipv4Header {
                options: [0x94, 4, 0, 0, 1, 1, 1, 0].into(),
                protocol: etherparse::IpNumber::TCP,
                ..etherparse::Ipv4Header::new(0, 9, etherparse::IpNumber::TCP, CLIENT, BACKEND).unwrap()
            },
            Default::default(),
        ))
        .tcp(40_000, 8080, 100, 512)
        .syn()
        .options_raw(&[2, 4, 5, 0xb4, 1, 1, 4, 2])
        .unwrap()
        .write(&mut original, &[1, 2, 3])
        .unwrap();
    let frame = answer(&event(&original, 14)).unwrap();
    let packet = check(&frame);
    assert_swapped(&packet);
    assert_eq!(reset_of(&packet), (0, 104, true));
}

#[test]
fn ipv6_with_extension_headers() {
    let mut tcp = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC)
        .ipv6(CLIENT6, BACKEND6, 9)
        .tcp(40_000, 8080, 5, 512)
        .ack(77)
        .write(&mut tcp, &[0; 10])
        .unwrap();
    let frame = answer(&event(&tcp, 14)).unwrap();
    let packet = check(&frame);
    assert_swapped(&packet);
    assert_eq!(reset_of(&packet), (77, 0, false));

    // Hop-by-hop (8 bytes) and destination options (16 bytes) are between the two headers. The checksums do not change.
    let mut extended = tcp[..54].to_vec();
    extended[20] = 0;
    extended.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
    extended.extend_from_slice(&[6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    extended.extend_from_slice(&tcp[54..]);
    let payload_len = (extended.len() - 54) as u16;
    extended[18..20].copy_from_slice(&payload_len.to_be_bytes());
    let extended_answer = super::answer(&event(&extended, 14)).unwrap();
    assert_eq!((extended_answer.frame, extended_answer.icmp_to), (frame.clone(), None));

    let mut fragment = extended.clone();
    fragment[20] = 44;
    assert_eq!(answer(&event(&fragment, 14)), Err(Unanswerable::Never));
    // The kernel programs follow each of these headers: mobility, HIP, shim6, and an atomic fragment, whose second byte is no length.
    for next in [135, 139, 140] {
        extended[20] = next;
        assert_eq!(answer(&event(&extended, 14)).unwrap(), frame, "{next}");
    }
    extended[20] = 44;
    extended[54..62].copy_from_slice(&[60, 9, 0, 0, 1, 2, 3, 4]);
    assert_eq!(answer(&event(&extended, 14)).unwrap(), frame);
}

#[test]
fn a_datagram_gets_port_unreachable_with_what_was_captured() {
    for payload in [0, 1, 11, 140, 150, 151, 1_200] {
        let original = write(
            |out, data| {
                let step = PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC).ipv4(CLIENT, BACKEND, 9);
                step.udp(40_000, 53).write(out, data).unwrap();
            },
            payload,
        );
        let frame = answer(&event(&original, 14)).unwrap();
        let packet = check(&frame);
        assert_swapped(&packet);
        let icmp_to = super::answer(&event(&original, 14)).unwrap().icmp_to;
        assert_eq!(icmp_to, Some(Addr::v4(CLIENT)), "of these there is a budget");
        let Some(TransportSlice::Icmpv4(icmp)) = &packet.transport else { panic!("{packet:?}") };
        assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port));
        assert_eq!(icmp.payload(), &original[14..original.len().min(HEAD_LEN)], "payload {payload}");
    }
}

#[test]
fn an_ipv6_datagram_gets_port_unreachable() {
    let mut original = Vec::new();
    let step = PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC).ipv6(CLIENT6, BACKEND6, 9);
    step.udp(40_000, 53).write(&mut original, &[7; 333]).unwrap();
    let frame = answer(&event(&original, 14)).unwrap();
    let packet = check(&frame);
    assert_swapped(&packet);
    let Some(TransportSlice::Icmpv6(icmp)) = &packet.transport else { panic!("{packet:?}") };
    assert_eq!(icmp.icmp_type(), Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port));
    assert_eq!(icmp.payload(), &original[14..HEAD_LEN]);
}

#[test]
fn link_layer_padding_is_not_quoted() {
    let mut original = Vec::new();
    let step = PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC).ipv4(CLIENT, BACKEND, 9);
    step.udp(40_000, 53).write(&mut original, &[7; 2]).unwrap();
    let len = original.len();
    original.resize(60, 0xee);
    let frame = answer(&event(&original, 14)).unwrap();
    let packet = check(&frame);
    let Some(TransportSlice::Icmpv4(icmp)) = &packet.transport else { panic!("{packet:?}") };
    assert_eq!(icmp.payload(), &original[14..len]);
}

#[test]
fn vlan_tags_come_back() {
    let mut tagged = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC)
        .single_vlan(42.try_into().unwrap())
        .ipv4(CLIENT, BACKEND, 9)
        .tcp(40_000, 8080, 1, 512)
        .ack(2)
        .write(&mut tagged, &[])
        .unwrap();
    // The tag is in the frame.
    let frame = answer(&event(&tagged, 18)).unwrap();
    let packet = check(&frame);
    assert_swapped(&packet);
    assert_eq!(packet.vlan_ids().as_slice(), &[42.try_into().unwrap()]);
    assert_eq!(reset_of(&packet), (2, 0, false));
    // An accelerated tag comes in front of the tag in the frame.
    let mut both = event(&tagged, 18);
    both.vlan_proto = 0x88a8;
    both.vlan_tci = 0x6007;
    let frame = answer(&both).unwrap();
    assert_eq!(&frame[12..16], &[0x88, 0xa8, 0x60, 0x07]);
    let packet = check(&frame);
    assert_swapped(&packet);
    assert_eq!(packet.vlan_ids().as_slice(), &[7.try_into().unwrap(), 42.try_into().unwrap()]);
}

#[test]
fn a_device_without_link_layer_gets_a_dummy_header() {
    let v4 = tcp_v4("A", 0);
    let frame = answer(&event(&v4[14..], 0)).unwrap();
    assert_eq!(&frame[..14], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
    assert_eq!(reset_of(&check(&frame)), (0xdead_beef, 0, false));
    let mut v6 = Vec::new();
    let step = PacketBuilder::ipv6(CLIENT6, BACKEND6, 9).tcp(40_000, 8080, 5, 512);
    step.ack(77).write(&mut v6, &[]).unwrap();
    let frame = answer(&event(&v6, 0)).unwrap();
    assert_eq!(&frame[12..14], &[0x86, 0xdd]);
    assert_eq!(reset_of(&check(&frame)), (77, 0, false));
}

#[test]
fn what_must_not_be_answered_is_not() {
    let mut sample = event(&tcp_v4("A", 0), 14);
    sample.kind = EventKind::Cut as u32;
    assert_eq!(answer(&sample), Err(Unanswerable::Kind(0)));

    let change = |at: usize, to: &[u8]| {
        let mut packet = tcp_v4("A", 0);
        packet[at..at + to.len()].copy_from_slice(to);
        answer(&event(&packet, 14))
    };
    assert_eq!(change(20, &[0x20, 0]), Err(Unanswerable::Never));
    assert_eq!(change(20, &[0, 1]), Err(Unanswerable::Never));
    assert!(change(20, &[0x40, 0]).is_ok());
    assert_eq!(change(23, &[132]), Err(Unanswerable::Never));
    assert_eq!(change(23, &[1]), Err(Unanswerable::Never));
    assert_eq!(change(30, &[224, 0, 0, 1]), Err(Unanswerable::Never));
    assert_eq!(change(30, &[255; 4]), Err(Unanswerable::Never));
    assert_eq!(change(26, &[0; 4]), Err(Unanswerable::Never));
    assert_eq!(change(46, &[0x40]), Err(Unanswerable::Headers(Skip::Malformed)));
    assert_eq!(change(14, &[0x44]), Err(Unanswerable::Headers(Skip::Malformed)));
    assert_eq!(change(14, &[0x55]), Err(Unanswerable::Headers(Skip::NotIp)));

    let whole = event(&tcp_v4("A", 0), 14);
    for len in 0..54 {
        let mut short = whole;
        short.head_len = len;
        assert_eq!(answer(&short), Err(Unanswerable::Headers(Skip::Short)), "{len}");
    }
}

#[test]
fn a_big_tcp_packet_counts_by_its_own_length() {
    let mut packet = tcp_v4("S", 0);
    packet[16..18].copy_from_slice(&[0, 0]);
    let mut big = event(&packet, 14);
    big.packet_len = 14 + 40 + 180_000;
    let frame = answer(&big).unwrap();
    assert_eq!(reset_of(&check(&frame)).1, 0xffff_fff0_u32.wrapping_add(180_001));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// The numbers of RFC 9293 section 3.10.7.1 are worked out here independently.
    #[test]
    fn any_segment_is_answered_as_a_closed_port_does(seq: u32, ack: u32, flags in 0_u8..64, payload in 0_usize..100) {
        let mut bytes = tcp_v4("", payload);
        bytes[38..42].copy_from_slice(&seq.to_be_bytes());
        bytes[42..46].copy_from_slice(&ack.to_be_bytes());
        bytes[47] = flags;
        let [fin, syn, rst, with_ack] = [1, 2, 4, 16].map(|flag| flags & flag != 0);
        let end = seq.wrapping_add(payload as u32 + u32::from(syn) + u32::from(fin));
        match answer(&event(&bytes, 14)) {
            Err(error) => prop_assert!(rst, "{error}"),
            Ok(frame) => {
                prop_assert!(!rst);
                let expected = if with_ack { (ack, 0, false) } else { (0, end, true) };
                prop_assert_eq!(reset_of(&check(&frame)), expected);
            }
        }
    }

    /// Whatever the kernel hands over, nothing panics, and each answer is well-formed.
    #[test]
    fn never_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..=HEAD_LEN),
        l3 in prop_oneof![Just(0_u16), Just(14), Just(18), Just(22), any::<u16>()],
        family in prop_oneof![Just(None), Just(Some(0x45_u8)), Just(Some(0x4f)), Just(Some(0x60))],
        next in prop_oneof![Just(None), Just(Some(6_u8)), Just(Some(17)), Just(Some(0)), Just(Some(43))],
        packet_len in any::<u32>(), head_len in any::<u16>(), vlan in any::<(u16, u16)>(),
    ) {
        let at = usize::from(l3);
        if let Some(slot) = bytes.get_mut(at) { *slot = family.unwrap_or(*slot); }
        let at = if family == Some(0x60) { at + 6 } else { at + 9 };
        if let Some(slot) = bytes.get_mut(at) { *slot = next.unwrap_or(*slot); }
        let mut event = event(&bytes, usize::from(l3));
        event.packet_len = packet_len;
        (event.vlan_tci, event.vlan_proto) = vlan;
        if head_len % 3 == 0 { event.head_len = head_len; }
        if let Ok(frame) = answer(&event) {
            prop_assert!(frame.len() <= 14 + 22 + 1280);
        }
    }
}
