//! The parser on plain memory: where headers lie, what they say, and what is refused.
use nodefence_common::{
    Addr,
    packet::{Link, Packet, Skip, locate, marks, network, transport},
};

fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in tags {
        out.extend(tag.to_be_bytes());
        out.extend([0, 5]);
    }
    out.extend(ethertype.to_be_bytes());
    out
}

fn v4(protocol: u8, options: usize, fragment: u16, body: &[u8]) -> Vec<u8> {
    let header = 20 + options;
    let mut out = vec![0x40 | (header / 4) as u8, 0];
    out.extend(((header + body.len()) as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend(fragment.to_be_bytes());
    out.extend([64, protocol, 0, 0, 10, 1, 0, 9, 10, 244, 1, 7]);
    out.extend(vec![1; options]);
    out.extend(body);
    out
}

fn v6(next: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend((body.len() as u16).to_be_bytes());
    out.extend([next, 64]);
    out.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    out.extend([0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    out.extend(body);
    out
}

fn tcp(options: usize, payload: usize) -> Vec<u8> {
    let mut out = vec![0x9c, 0x41, 0x1f, 0x90, 1, 2, 3, 4, 5, 6, 7, 8];
    out.extend([(((20 + options) / 4) << 4) as u8, 0x18, 0, 1, 0, 0, 0, 0]);
    out.extend(vec![1; options + payload]);
    out
}

fn read(frame: &[u8], link: Link) -> Result<Packet, Skip> {
    let ip = locate(&frame, link)?;
    let mut out = Packet::empty();
    network(&frame, link, ip.offset, ip.v6, &mut out)?;
    transport(&frame, &mut out)?;
    assert_eq!(ip.addr, out.dst);
    Ok(out)
}

fn bare(packet: &[u8]) -> Result<Packet, Skip> {
    read(packet, Link::None(if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd }))
}

#[test]
fn finds_the_header_behind_up_to_two_tags() {
    for tags in [&[][..], &[0x8100], &[0x88a8], &[0x88a8, 0x8100], &[0x8100, 0x8100]] {
        let frame = [ethernet(tags, 0x0800), v4(6, 0, 0, &tcp(0, 3))].concat();
        let packet = read(&frame, Link::Ethernet).expect("parses");
        assert_eq!((packet.l3, packet.l4), (14 + 4 * tags.len() as u32, 34 + 4 * tags.len() as u32));
        assert_eq!((packet.src, packet.dst), (Addr::v4([10, 1, 0, 9]), Addr::v4([10, 244, 1, 7])));
    }
    let three = [ethernet(&[0x8100; 3], 0x0800), v4(6, 0, 0, &tcp(0, 3))].concat();
    assert_eq!(read(&three, Link::Ethernet), Err(Skip::Malformed));
}

#[test]
fn tells_other_protocols_from_broken_packets() {
    for ethertype in [0x0806, 0x8847, 0x8864, 0x0026] {
        let frame = [ethernet(&[], ethertype), vec![0; 60]].concat();
        assert_eq!(read(&frame, Link::Ethernet), Err(Skip::NotIp), "{ethertype:#06x}");
    }
    let frame = [ethernet(&[], 0x0800), v6(6, &tcp(0, 0))].concat();
    assert_eq!(read(&frame, Link::Ethernet), Err(Skip::Malformed), "IPv6 under the ethertype of IPv4");
    for len in 0..33 {
        let frame = [ethernet(&[], 0x0800), v4(6, 0, 0, &tcp(0, 0))].concat();
        assert_eq!(read(&frame[..len], Link::Ethernet), Err(Skip::Short), "{len} bytes");
    }
}

#[test]
fn reads_segments() {
    for (packet, l4) in
        [(v4(6, 0, 0, &tcp(12, 5)), 20), (v4(6, 40, 0, &tcp(12, 5)), 60), (v6(6, &tcp(12, 5)), 40)]
    {
        let packet = bare(&packet).expect("parses");
        assert_eq!((packet.l4, packet.payload, packet.protocol, packet.kind), (l4, 5, 6, 0x18));
        assert_eq!((packet.src_port, packet.dst_port), (40_001, 8_080));
        assert_eq!((packet.seq, packet.ack), (0x0102_0304, 0x0506_0708));
        assert!(packet.is(marks::TRANSPORT) && !packet.is(marks::FRAGMENT));
        assert_eq!(packet.is(marks::EXTENDED), l4 == 60);
    }
}

#[test]
fn padding_behind_the_packet_is_no_payload() {
    let frame = [ethernet(&[], 0x0800), v4(6, 0, 0, &tcp(0, 0)), vec![0; 6]].concat();
    assert_eq!(read(&frame, Link::Ethernet).expect("parses").payload, 0);
}

#[test]
fn lengths_that_contradict_are_refused() {
    let mut long = v4(6, 0, 0, &tcp(0, 0));
    long[3] += 1;
    assert_eq!(bare(&long), Err(Skip::Malformed), "a total length beyond the frame");
    let mut short = v4(6, 20, 0, &tcp(0, 0));
    short[3] = 30;
    assert_eq!(bare(&short), Err(Skip::Malformed), "a total length within the header");
    let mut zero = v4(6, 0, 0, &tcp(0, 0));
    zero[3] = 0;
    assert_eq!(bare(&zero), Err(Skip::Malformed), "a total length of zero");
    let mut offset = v4(6, 0, 0, &tcp(0, 0));
    offset[32] = 0x40;
    assert_eq!(bare(&offset), Err(Skip::Malformed), "a TCP header of 16 bytes");
    offset[32] = 0x60;
    assert_eq!(bare(&offset), Err(Skip::Malformed), "a TCP header beyond the packet");
    for (protocol, least) in [(6, 20), (17, 8), (132, 12), (1, 8)] {
        assert_eq!(
            bare(&v4(protocol, 0, 0, &vec![0x50; least - 1])),
            Err(Skip::Malformed),
            "protocol {protocol}"
        );
    }
}

#[test]
fn big_tcp_packets_have_a_length_of_zero() {
    // The length field cannot hold it (Linux 5.19 for IPv6, 6.3 for IPv4).
    let mut big = v4(6, 0, 0, &tcp(0, 0));
    big[2..4].copy_from_slice(&[0, 0]);
    big.resize(100_000, 0);
    assert_eq!(bare(&big).expect("parses").payload, 100_000 - 40);
    let mut big = v6(6, &tcp(0, 0));
    big[4..6].copy_from_slice(&[0, 0]);
    big.resize(100_000, 0);
    assert_eq!(bare(&big).expect("parses").payload, 100_000 - 60);
}

#[test]
fn marks_fragments() {
    for (field, first) in [(0x2000, true), (0x2001, false), (0x0001, false)] {
        let packet = bare(&v4(6, 0, field, &tcp(0, 8))).expect("parses");
        assert!(packet.is(marks::FRAGMENT), "{field:#06x}");
        assert_eq!(packet.is(marks::TRANSPORT), first, "{field:#06x}");
    }
    assert!(!bare(&v4(6, 0, 0x4000, &tcp(0, 8))).expect("parses").is(marks::FRAGMENT), "DF is no fragment");
    for (field, fragment, first) in
        [(0x0000, false, true), (0x0001, true, true), (0x0009, true, false), (0x0008, true, false)]
    {
        let bytes: [u8; 2] = u16::to_be_bytes(field);
        let header = [6, 0, bytes[0], bytes[1], 0, 0, 0, 1];
        let packet = bare(&v6(44, &[&header[..], &tcp(0, 8)].concat())).expect("parses");
        assert_eq!(
            (packet.is(marks::FRAGMENT), packet.is(marks::TRANSPORT)),
            (fragment, first),
            "{field:#06x}"
        );
    }
}

#[test]
fn follows_extension_headers() {
    let option = |next: u8| vec![next, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let chain = [option(60), option(43), option(6), tcp(0, 4)].concat();
    let packet = bare(&v6(0, &chain)).expect("parses");
    assert_eq!((packet.l4, packet.payload, packet.protocol), (88, 4, 6));
    assert!(packet.is(marks::EXTENDED) && !packet.is(marks::WAYPOINT));
    let mut waypoint = [option(6), tcp(0, 4)].concat();
    waypoint[3] = 1;
    assert!(bare(&v6(43, &waypoint)).expect("parses").is(marks::WAYPOINT));
    let seven = [vec![option(60); 6].concat(), option(6), tcp(0, 0)].concat();
    assert_eq!(bare(&v6(60, &seven)), Err(Skip::Malformed), "seven extension headers");
    let mut deep = vec![0; 600];
    deep[..2].copy_from_slice(&[6, 73]);
    assert_eq!(bare(&v6(60, &deep)), Err(Skip::Malformed), "a header of 592 bytes");
    assert_eq!(bare(&v6(60, &[6, 1, 0, 0, 0, 0, 0, 0])), Err(Skip::Malformed), "a header beyond the packet");
}

#[test]
fn mapped_addresses_are_no_ipv6() {
    let mut packet = v6(6, &tcp(0, 0));
    packet[24..40].copy_from_slice(&Addr::v4([10, 244, 1, 7]).bytes);
    assert_eq!(bare(&packet), Err(Skip::Malformed));
}
