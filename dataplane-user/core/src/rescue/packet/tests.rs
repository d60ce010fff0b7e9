//! etherparse is the independent writer and reader: it shares no code with what is tested.
use std::net::IpAddr;

use etherparse::{
    IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, PacketBuilderStep, SlicedPacket, TcpHeader,
};
use nodefence_common::Addr;
use proptest::prelude::*;

use super::*;

fn tuple(six: bool, src: (u8, u16), dst: (u8, u16), protocol: u8) -> Tuple {
    let addr = |last: u8| match six {
        false => Addr::v4([10, 96, 7, last]),
        true => Addr::v6([0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 7, last]),
    };
    Tuple { src: addr(src.0), dst: addr(dst.0), src_port: src.1, dst_port: dst.1, protocol }
}

/// A packet with these ends from its IP header on.
fn build(ends: &Tuple, hops: u8, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let ip: PacketBuilderStep<etherparse::IpHeaders> = match (ends.src.into(), ends.dst.into()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header =
                Ipv4Header::new(0, hops, IpNumber(ends.protocol), src.octets(), dst.octets()).unwrap();
            header.dont_fragment = true;
            header.identification = 0x4711;
            header.dscp = 46.try_into().unwrap();
            PacketBuilder::ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Header {
                traffic_class: 0xb8,
                flow_label: 0x1_2345.try_into().unwrap(),
                hop_limit: hops,
                next_header: IpNumber(ends.protocol),
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv6Header::default()
            };
            PacketBuilder::ip(etherparse::IpHeaders::Ipv6(header, Default::default()))
        }
        _ => panic!("two families"),
    };
    let mut out = Vec::new();
    if ends.protocol == 17 {
        ip.udp(ends.src_port, ends.dst_port).write(&mut out, payload).unwrap();
    } else {
        let mut tcp = TcpHeader::new(ends.src_port, ends.dst_port, 0xffff_fff0, 64_240);
        tcp.set_options_raw(options).unwrap();
        (tcp.syn, tcp.ece, tcp.cwr) = (flags & 2 != 0, flags & 0x40 != 0, flags & 0x80 != 0);
        ip.tcp_header(tcp).write(&mut out, payload).unwrap();
    }
    out
}

proptest! {
    /// A client's packet that kube-proxy translated is made again to the byte, whatever stands in the checksum fields.
    #[test]
    fn a_packet_is_again_what_its_sender_made(
        six: bool,
        udp: bool,
        hops in 2_u8..,
        ports: [u16; 4],
        hosts: [u8; 4],
        flags: u8,
        options in prop::collection::vec(any::<u8>(), 0..10),
        payload in prop::collection::vec(any::<u8>(), 0..1_500),
        spoilt: [u8; 2],
        padding in 0_usize..8,
    ) {
        let options: Vec<u8> = options.iter().flat_map(|byte| [1, 1, 1, *byte]).collect();
        let protocol = if udp { 17 } else { 6 };
        let sent = tuple(six, (hosts[0], ports[0]), (hosts[1], ports[1]), protocol);
        let left = tuple(six, (hosts[2], ports[2]), (hosts[3], ports[3]), protocol);
        let original = build(&sent, hops, flags | 2, &options, &payload);
        let mut translated = build(&left, hops - 1, flags | 2, &options, &payload);
        let header = if six { 40 } else { 20 };
        let field = header + if udp { 6 } else { 16 };
        translated[field..field + 2].copy_from_slice(&spoilt);
        translated.resize(translated.len() + padding, 0xee);
        let packet = Packet::parse(&translated).unwrap();
        prop_assert_eq!(packet.tuple, left);
        let reply = packet.reply();
        prop_assert_eq!((reply.src, reply.src_port, reply.dst, reply.dst_port), (left.dst, left.dst_port, left.src, left.src_port));
        prop_assert_eq!(packet.between(&sent, 1).unwrap(), original);
        // The TTL of an own socket's packet was not lowered.
        let own = packet.between(&sent, 0).unwrap();
        prop_assert_eq!(own[if six { 7 } else { 8 }], hops - 1);
        prop_assert!(SlicedPacket::from_ip(&own).is_ok());
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0x40_u8..0x70) {
        let _ = Packet::parse(&bytes);
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() { *byte = first; }
        if let Ok(packet) = Packet::parse(&bytes) {
            let _ = packet.between(&packet.tuple, 1);
        }
    }

    #[test]
    fn a_packet_that_is_cut_off_is_not_put_in(six: bool, udp: bool, len in 0_usize..48) {
        let ends = tuple(six, (1, 40_000), (2, 80), if udp { 17 } else { 6 });
        let whole = build(&ends, 64, 2, &[], b"nodefence");
        let cut = &whole[..len.min(whole.len() - 1)];
        prop_assert!(Packet::parse(cut).is_err());
    }
}

#[test]
fn what_contradicts_itself_is_not_read() {
    let tcp = build(&tuple(false, (1, 40_000), (2, 80), 6), 64, 2, &[], b"x");
    let udp = build(&tuple(true, (1, 40_000), (2, 53), 17), 64, 0, &[], b"query");
    let with = |packet: &[u8], at: usize, byte: u8| {
        let mut packet = packet.to_vec();
        packet[at] = byte;
        Packet::parse(&packet).map(|packet| packet.tuple)
    };
    assert_eq!(with(&tcp, 0, 0x46), Err(Unreadable::Extended));
    assert_eq!(with(&tcp, 6, 0x20), Err(Unreadable::Extended));
    assert_eq!(with(&tcp, 7, 1), Err(Unreadable::Extended));
    assert_eq!(with(&tcp, 3, 200), Err(Unreadable::Length));
    assert_eq!(with(&tcp, 9, 132), Err(Unreadable::Protocol));
    assert_eq!(with(&tcp, 0, 0x55), Err(Unreadable::Protocol));
    assert_eq!(with(&tcp, 32, 0x40), Err(Unreadable::Length));
    assert_eq!(with(&tcp, 32, 0xf0), Err(Unreadable::Length));
    assert_eq!(with(&udp, 45, 9), Err(Unreadable::Length));
    assert_eq!(with(&udp, 6, 44), Err(Unreadable::Extended));
    assert_eq!(with(&udp, 5, 3), Err(Unreadable::Length));
}

#[test]
fn a_datagram_whose_sum_is_zero_says_so_with_ones() {
    // The payload is chosen so that the sum of everything else is all ones: found by trying all of them.
    let ends = tuple(false, (1, 40_000), (2, 53), 17);
    let found = (0..=u16::MAX).map(u16::to_be_bytes).find_map(|payload| {
        let packet = build(&ends, 64, 0, &[], &payload);
        let out = Packet::parse(&packet).unwrap().between(&ends, 0).unwrap();
        assert_ne!(out[26..28], [0, 0], "no checksum");
        (out[26..28] == [0xff, 0xff]).then_some((out, packet))
    });
    let (out, packet) = found.expect("some payload has that sum");
    assert_eq!(out, packet);
}

#[test]
fn neither_version_nor_protocol_changes() {
    let ends = tuple(false, (1, 40_000), (2, 80), 6);
    let bytes = build(&ends, 64, 2, &[], b"");
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.between(&tuple(true, (1, 1), (2, 2), 6), 1), None);
    assert_eq!(packet.between(&Tuple { protocol: 17, ..ends }, 1), None);
    let full = packet.between(&ends, 255).unwrap();
    assert_eq!(full[8], 255, "the TTL wrapped");
}

#[test]
fn the_frame_is_for_the_device() {
    for six in [false, true] {
        let bytes = build(&tuple(six, (1, 40_000), (2, 80), 6), 64, 2, &[], b"");
        let frame = ethernet([2, 9, 9, 9, 9, 9], &bytes);
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        assert_eq!(&frame[..6], [2, 9, 9, 9, 9, 9]);
        assert_eq!(frame[6] & 1, 0, "a group address sends");
        assert!(sliced.net.is_some() && sliced.transport.is_some());
        assert_eq!(&frame[14..], bytes);
    }
}
