//! Tags, options, extension headers, fragments, and source addresses to which no answer is sent.
use std::net::IpAddr;

use nodefence_common::Reason;
use nodefence_tests::{
    packet_check::ExpectedAnswer,
    packet_frame::{Frame, OWN_MAC, PEER_MAC, Transport},
    packet_world::{HOST, HOST_PORT, REFUSE, v4, v6},
};

use super::case::{ACK_FLAG, Table, Want, frame, reset, tcp};

pub(crate) fn shapes(table: &mut Table, sixth: bool) {
    let ack = || frame(sixth, REFUSE, tcp(ACK_FLAG));
    let udp = || frame(sixth, REFUSE, Transport::Udp);
    for tags in [vec![0x8100], vec![0x88a8], vec![0x88a8, 0x8100], vec![0x8100, 0x8100]] {
        table.edited(&format!("TCP, tags {tags:x?}"), ack(), |frame| frame.tags = tags.clone(), reset());
        table.edited(
            &format!("UDP, tags {tags:x?}"),
            udp(),
            |frame| frame.tags = tags,
            Want::Answer(ExpectedAnswer::Unreachable),
        );
    }
    table.edited("three tags", ack(), |frame| frame.tags = vec![0x8100; 3], Want::Counted(Reason::Unparsed));
    // Foreign packets: those with the MAC address of a pod, a guest or a tenant, and those in a VLAN by which no route to a backend leaves.
    for transport in [tcp(ACK_FLAG), tcp(2), Transport::Udp, Transport::Sctp] {
        let foreign = Want::Counted(Reason::Foreign);
        let made = || frame(sixth, REFUSE, transport.clone());
        for mac in [PEER_MAC, [2, 0, 0, 0, 0, 0x12], [2, 0, 0, 0, 1, 0x11], [0; 6]] {
            table.edited(
                "another's MAC address",
                made(),
                |frame| frame.macs = Some((PEER_MAC, mac)),
                foreign,
            );
        }
        for tags in [vec![0x8100], vec![0x88a8], vec![0x8100, 0x8100]] {
            for vlan in [99, 101, 200] {
                let set = |frame: &mut Frame| {
                    frame.tags = tags.clone();
                    frame.vlan = vlan;
                };
                table.edited(&format!("tags {tags:x?} from VLAN {vlan} on"), made(), set, foreign);
            }
        }
    }
    for mac in [[0xff; 6], [1, 0, 0x5e, 1, 2, 3], [0x33, 0x33, 0, 0, 0, 1]] {
        table.edited(
            "a link-layer group",
            ack(),
            |frame| frame.macs = Some((mac, OWN_MAC)),
            Want::Drop(Reason::Dropped),
        );
    }
    let sources = if sixth { ["::", "::1", "ff02::1"] } else { ["0.0.0.0", "127.0.0.1", "239.1.1.1"] };
    for source in sources {
        let set = |frame: &mut Frame| frame.src = source.parse().expect("an address");
        table.edited(&format!("from {source}"), ack(), set, Want::Drop(Reason::Dropped));
        table.edited(&format!("from {source}, UDP"), udp(), set, Want::Drop(Reason::Dropped));
    }
    let handed = Want::Drop(Reason::Handed);
    if sixth {
        shapes_v6(table);
        return;
    }
    for len in [4, 20, 40] {
        table.edited(
            &format!("TCP, {len} bytes of options"),
            ack(),
            |frame| frame.options = vec![1; len],
            reset(),
        );
        table.edited(
            &format!("UDP, {len} bytes of options"),
            udp(),
            |frame| frame.options = vec![1; len],
            handed,
        );
    }
    let broadcast = |frame: &mut Frame| frame.src = "255.255.255.255".parse().expect("an address");
    table.edited("from the broadcast address", ack(), broadcast, Want::Drop(Reason::Dropped));
    fragments(table, [ack(), udp()], v4(HOST), |frame, fragment| frame.fragment = Some(fragment));
}

fn shapes_v6(table: &mut Table) {
    let ack = || frame(true, REFUSE, tcp(ACK_FLAG));
    let udp = || frame(true, REFUSE, Transport::Udp);
    let option = |kind, units: u8| {
        let mut bytes = vec![0; 8 * (usize::from(units) + 1)];
        bytes[1] = units;
        (kind, bytes)
    };
    for chain in [
        vec![option(0, 0)],
        vec![option(60, 2)],
        vec![option(43, 0)],
        vec![option(0, 0), option(60, 1), option(43, 2)],
    ] {
        let kinds: Vec<_> = chain.iter().map(|(kind, _)| *kind).collect();
        table.edited(
            &format!("TCP behind {kinds:?}"),
            ack(),
            |frame| frame.extensions = chain.clone(),
            reset(),
        );
        table.edited(
            &format!("UDP behind {kinds:?}"),
            udp(),
            |frame| frame.extensions = chain,
            Want::Drop(Reason::Handed),
        );
    }
    let atomic = vec![Frame::fragment_header(0, false)];
    table.edited("an atomic fragment", ack(), |frame| frame.extensions = atomic, reset());
    let mut waypoint = option(43, 2);
    waypoint.1[3] = 1;
    table.edited("a waypoint", ack(), |frame| frame.extensions = vec![waypoint], Want::Drop(Reason::Dropped));
    let long = |units: usize| vec![option(60, 0); units];
    table.edited("six extension headers", ack(), |frame| frame.extensions = long(6), reset());
    table.edited(
        "seven extension headers",
        ack(),
        |frame| frame.extensions = long(7),
        Want::Counted(Reason::Unparsed),
    );
    let deep = vec![option(60, 60)];
    table.edited(
        "headers that lie too deep",
        ack(),
        |frame| frame.extensions = deep,
        Want::Counted(Reason::Unparsed),
    );
    fragments(table, [ack(), udp()], v6(HOST), |frame, (offset, more)| {
        frame.extensions = vec![Frame::fragment_header(offset, more)];
    });
    let mut none = frame(true, REFUSE, Transport::Raw(59));
    none.payload.clear();
    table.add("no next header", none, Want::Drop(Reason::Dropped));
    let mapped = |frame: &mut Frame| frame.dst = "::ffff:10.244.1.7".parse().expect("an address");
    table.edited("an IPv4-mapped destination", ack(), mapped, Want::Counted(Reason::Unparsed));
}

/// Fragments of these frames, to a backend and to a host-network one. `cut` makes a frame a fragment with this offset, and with or without more to follow.
fn fragments(table: &mut Table, frames: [Frame; 2], host: IpAddr, cut: impl Fn(&mut Frame, (u16, bool))) {
    for (name, fragment) in [("first", (0, true)), ("middle", (185, true)), ("last", (370, false))] {
        for mut frame in frames.clone() {
            cut(&mut frame, fragment);
            table.add(&format!("the {name} fragment"), frame.clone(), Want::Drop(Reason::FragmentDropped));
            frame.dst = host;
            frame.dport = HOST_PORT;
            table.add(
                &format!("the {name} fragment to a host"),
                frame,
                Want::Counted(Reason::FragmentPassed),
            );
        }
    }
}
