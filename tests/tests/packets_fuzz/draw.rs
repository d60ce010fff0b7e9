//! Draws random packets of each shape that the programs know, many of them with faults.
use std::net::IpAddr;

use nodefence_tests::{
    packet::XDP,
    packet_frame::{Frame, OWN_MAC, PEER_MAC, Transport},
    packet_world::{EXEMPT_PORT, HOST_PORT, LAST, odd_backends, v4, v6},
};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

/// Draws one of these programs, and a packet for it.
pub(crate) fn draw(random: &mut StdRng, programs: &[&'static str]) -> (&'static str, Vec<u8>) {
    let name = *programs.choose(random).expect("not empty");
    let mut bytes = if random.random_ratio(1, 50) {
        let mut noise = vec![0; random.random_range(15..200)];
        random.fill(&mut noise[..]);
        noise
    } else {
        mutated(random, name)
    };
    if name != XDP {
        // The kernel refuses to run a classifier on fewer bytes (bpf_prog_test_run_skb, Linux 6.18).
        let least = match bytes[12..14] {
            [8, 0] => 34,
            [0x86, 0xdd] => 54,
            _ => 15,
        };
        if bytes.len() < least {
            bytes.resize(least, 0);
        }
    }
    (name, bytes)
}

/// A packet that the program may parse, often with faults.
fn mutated(random: &mut StdRng, name: &str) -> Vec<u8> {
    let bare = name.ends_with("_l3");
    let frame = shape(random, bare);
    let mut bytes = frame.bytes();
    if random.random_ratio(1, 3) {
        mutate(random, &mut bytes);
    }
    if bare && random.random_ratio(9, 10) {
        // This packet has no Ethernet header, so the kernel reads bytes of the source address as the ethertype.
        let ethertype: [u8; 2] = if bytes[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        bytes[12..14].copy_from_slice(&ethertype);
    }
    bytes
}

/// The address of a node's backend. In a packet from this address that starts with the IP header, the kernel finds an ethertype where a frame has it.
pub(crate) fn bare_backend(node: u32, sixth: bool) -> IpAddr {
    let text = if sixth { format!("fd00:0:86dd:{node}::7") } else { format!("8.0.{node}.7") };
    text.parse().expect("an address")
}

fn mutate(random: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..5) {
        // Most changes are in the headers.
        let end = if random.random_bool(0.8) { bytes.len().min(80) } else { bytes.len() };
        let at = random.random_range(0..end);
        bytes[at] = match random.random_range(0..4) {
            0 => random.random(),
            1 => 0,
            2 => 0xff,
            _ => bytes[at] ^ 1 << random.random_range(0..8),
        };
    }
    match random.random_range(0..6) {
        0 => bytes.truncate(random.random_range(15..=bytes.len())),
        1 => bytes.resize(bytes.len() + random.random_range(1..60), 0),
        _ => {}
    }
}

fn shape(random: &mut StdRng, bare: bool) -> Frame {
    let sixth = random.random_bool(0.45);
    let src = source(random, sixth);
    let dst = destination(random, sixth);
    let transport = match random.random_range(0..12) {
        0..=5 => Transport::Tcp {
            seq: random.random(),
            ack: random.random(),
            flags: *[0x10, 0x18, 0x11, 0x02, 0x12, 0x00, 0x01, 0x04, 0x14, 0x03]
                .choose(random)
                .expect("not empty"),
        },
        6 | 7 => Transport::Udp,
        8 => Transport::Sctp,
        9 | 10 => {
            Transport::Icmp(if random.random() { random.random_range(130..140) } else { random.random() })
        }
        _ => Transport::Raw(random.random()),
    };
    let mut frame = Frame::new(src, dst, transport);
    frame.macs = (!bare).then(|| match random.random_range(0..20) {
        0 => ([0xff; 6], OWN_MAC),
        1 => ([1, 0, 0x5e, 0, 0, 9], OWN_MAC),
        2 => (random.random(), random.random()),
        _ => (PEER_MAC, OWN_MAC),
    });
    if random.random_ratio(1, 4) {
        frame.tags =
            (0..random.random_range(1..4)).map(|_| if random.random() { 0x8100 } else { 0x88a8 }).collect();
    }
    if random.random_bool(0.5) {
        frame.dport = *[HOST_PORT, EXEMPT_PORT].choose(random).expect("not empty");
    }
    frame.sport = random.random();
    frame.payload = vec![random.random(); random.random_range(0..120)];
    if random.random_ratio(1, 4) {
        frame.tcp_options = vec![1; 4 * random.random_range(1..=10)];
    }
    if sixth {
        if random.random_ratio(1, 3) {
            frame.extensions = (0..random.random_range(1..8)).map(|_| extension(random)).collect();
        }
    } else {
        if random.random_ratio(1, 5) {
            frame.options = vec![1; 4 * random.random_range(1..=10)];
        }
        if random.random_ratio(1, 8) {
            frame.fragment = Some((*[0, 1, 185, 0x1fff].choose(random).expect("not empty"), random.random()));
        }
    }
    frame
}

fn extension(random: &mut StdRng) -> (u8, Vec<u8>) {
    let kind = *[0, 43, 60, 44, 135, 51, 59].choose(random).expect("not empty");
    if kind == 44 {
        return Frame::fragment_header(*[0, 0, 1, 100].choose(random).expect("not empty"), random.random());
    }
    let units: u8 =
        if random.random_ratio(1, 20) { random.random_range(10..80) } else { random.random_range(0..3) };
    let mut bytes = vec![0; 8 * (usize::from(units) + 1)];
    bytes[1] = units;
    bytes[3] = u8::from(random.random_ratio(1, 4));
    (kind, bytes)
}

fn source(random: &mut StdRng, sixth: bool) -> IpAddr {
    let odd = random.random_ratio(1, 12);
    let texts: &[&str] = match (sixth, odd) {
        (false, false) => &["8.0.5.5", "10.1.0.9", "192.0.2.77", "223.255.255.254"],
        (false, true) => &["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.7", "240.0.0.1"],
        (true, false) => &["2001:db8:86dd::5", "fd00:1::9", "fe80::1", "::2", "::1:0:0:1"],
        (true, true) => &["::", "::1", "ff02::1", "ffff::1", "::ffff:10.244.1.7"],
    };
    texts.choose(random).expect("not empty").parse().expect("an address")
}

fn destination(random: &mut StdRng, sixth: bool) -> IpAddr {
    match random.random_range(0..20) {
        0 => {
            let odd: Vec<_> = odd_backends().into_iter().filter(|ip| ip.is_ipv6() == sixth).collect();
            *odd.choose(random).expect("not empty")
        }
        1 if sixth => "::ffff:10.244.1.7".parse().expect("an address"),
        1 => "10.244.1.8".parse().expect("an address"),
        2..=9 => {
            if sixth {
                v6(1)
            } else {
                v4(1)
            }
        }
        _ => {
            let node = random.random_range(0..=LAST);
            if sixth { v6(node) } else { v4(node) }
        }
    }
}
